// Package walk turns the registers of a thread and a copy of the top of its stack into the addresses of its frames, by the unwind
// rules of the files that its process has mapped. It brings together package names, which knows the files and functions at
// addresses, and package cfi, which knows the rules of files.
//
// Whoever asks never waits: what is not known yet is asked for, and known some moments later.
package walk

import (
	"os"
	"runtime"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/cfi"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// Names finds the file and the function at an address: see names.Namer.
type Names interface {
	Resolve(dst []names.Frame, p procmap.Process, seen uint64, addrs []uint64) (frames []names.Frame, pending bool)
}

// Rules has the unwind rules of files: see cfi.Store.
type Rules interface {
	Lookup(id symbols.FileID, open func() (*os.File, error), stuck func() (ended func())) (t *cfi.Table, pending bool)
}

// End tells how a walk has ended.
type End uint8

// The ends.
const (
	// Whole says that the last frame is the thread's first function.
	Whole End = iota
	// Copied says that the rest of the stack is not in the copy.
	Copied
	// Lost says that there is no way from the last frame to its caller.
	Lost
	// Deep says that there are more frames than Most.
	Deep
	// NumEnds is how many there are.
	NumEnds
)

// String returns a short name in plain words.
func (e End) String() string {
	return [...]string{"whole", "longer than the copy", "without a way on", "too deep", ""}[min(e, NumEnds)]
}

// Most is how many frames a stack has at most: as many as the stacks of gadgets have.
const Most = 127

// AtEntry is a bit of Registers.Known: the thread is at the first instruction of a function, whose caller is found without rules.
const AtEntry = 1 << 63

// Walker walks stacks. It is for one goroutine.
type Walker struct {
	Names Names
	Rules Rules

	one [1]uint64 // buffers
	at  []names.Frame
}

// Stack is what a walk has found, and the memory for it.
type Stack struct {
	// Addresses are those of the frames, the innermost first. All but the first are one more than an address in what runs there: where
	// a call returns to, or behind the first byte of an instruction that a signal has interrupted.
	Addresses []uint64
	// Frames are what is known of them, as many.
	Frames []names.Frame
	End    End
}

// Walk walks the stack of a thread of p, which was seen at a time after boot in nanoseconds. With files, nothing has to be
// waited for to know all frames; with named, neither for their functions.
func (w *Walker) Walk(s *Stack, p procmap.Process, seen uint64, regs cfi.Registers, stack cfi.Stack) (files, named bool) {
	s.Addresses, s.Frames, s.End = s.Addresses[:0], s.Frames[:0], Deep
	named, exact := true, true
	for len(s.Addresses) < Most {
		ip := regs.IP()
		w.one[0] = ip
		if !exact {
			w.one[0]-- // in the call, and not behind it
		}
		var pending bool
		w.at, pending = w.Names.Resolve(w.at[:0], p, seen, w.one[:])
		at := w.at[0]
		switch {
		case at.State == names.Pending:
			s.End = Lost
			return false, false
		case at.State == names.NotCode && len(s.Addresses) > 0:
			s.End = Lost
			return true, named
		}
		named = named && !pending
		if exact && len(s.Addresses) > 0 {
			ip++ // who looks this address up takes one off
		}
		s.Addresses, s.Frames = append(s.Addresses, ip), append(s.Frames, at)
		var result cfi.Result
		signal, known := false, true
		if regs.Known&AtEntry != 0 {
			regs.Known &^= AtEntry
			result = leave(&regs, stack)
		} else {
			result, signal, known = w.step(&at, &regs, stack)
		}
		if !known {
			s.End = Lost
			return false, false
		}
		exact = signal
		switch result {
		case cfi.Caller:
			if regs.IP() != 0 {
				continue
			}
			s.End = Whole
		case cfi.Outermost:
			s.End = Whole
		case cfi.OutOfCopy:
			s.End = Copied
		default:
			s.End = Lost
		}
		return true, named
	}
	return true, named
}

// step goes on to the caller. signal tells that a signal has interrupted it: its address is where it goes on.
func (w *Walker) step(at *names.Frame, regs *cfi.Registers, stack cfi.Stack) (result cfi.Result, signal, known bool) {
	if at.File != nil && at.State != names.Unreadable && at.State != names.Generated {
		table, pending := w.Rules.Lookup(at.File.ID, at.File.Open, at.File.Stuck)
		if pending {
			return 0, false, false
		}
		if table != nil {
			signal = table.Signal(at.Address)
			if result = table.Step(at.Address, regs, stack); result != cfi.NoRule {
				return result, signal, true
			}
		}
	}
	return cfi.FramePointer(regs, stack), false, true
}

// leave goes on to the caller from the first instruction of a function.
func leave(regs *cfi.Registers, stack cfi.Stack) cfi.Result {
	if runtime.GOARCH == "arm64" {
		const linkRegister = 30
		ip, ok := regs.Get(linkRegister)
		if !ok {
			return cfi.Bad
		}
		regs.SetIP(ip)
		return cfi.Caller
	}
	const word = 8
	ip, ok := stack.Word(regs.SP())
	if !ok {
		return cfi.OutOfCopy
	}
	regs.SetIP(ip)
	regs.SetSP(regs.SP() + word)
	return cfi.Caller
}
