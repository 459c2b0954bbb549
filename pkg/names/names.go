// Package names turns the addresses of a process into files, functions and lines, or reports why it cannot. It combines package
// procmap, which knows the mappings of files, and package symbols, which knows the functions of files.
//
// Callers never wait: unknown data is requested, and is known some moments later. The package does not depend on Inspektor Gadget
// or on OTLP messages.
package names

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Frame describes the code at an address.
type Frame struct {
	State State
	// File is the file of the code, or nil if unknown. If it could not be read, only its Path is set.
	File *procmap.File
	// Offset is the file offset of the code, and Address is its address in the file's symbol tables.
	Offset, Address uint64
	// Symbol is the function. Its Name is empty if unknown.
	Symbol symtab.Symbol
}

// Go reports whether the function was written in Go. Programs that the Go toolchain built can contain C functions, whose names
// have no package.
func (f *Frame) Go(name string) bool {
	if f.Symbol.Source == symtab.SourcePclntab && name == f.Symbol.Name {
		return isGoName(name)
	}
	return f.File != nil && f.File.Info.Go != "" && isGoName(name)
}

// State says what is known about an address, or why it is unknown.
type State uint8

// These are the states. With Unread and Pending, a later call knows more.
const (
	Named      State = iota // the function is known, and its file unless a perf map names generated code
	Unread                  // the file was not read yet
	Outside                 // no symbol of the file covers the address
	NoSymbols               // the file has no symbols
	BadSymbols              // the symbols are contradictory, too many or unreadable
	Replaced                // the file was removed or replaced before its symbols were read
	Unreadable              // the file could not be opened: only its path is known
	Pending                 // the process or its perf map is being read
	Gone                    // the process ended before its files were known
	Generated               // the code is in no file, and not yet in a perf map
	NotCode                 // nothing is mapped there: the unwinder left the stack
	NumStates
)

var stateNames = [NumStates]string{
	"named", "not read yet", "outside any symbol", "no symbols", "symbols unreadable", "file gone", "file unreadable",
	"not looked up yet", "process gone", "generated code", "not code",
}

// String returns a short description.
func (s State) String() string {
	if s < NumStates {
		return stateNames[s]
	}
	return "unknown"
}

// FileOnly reports whether only the file is known.
func (s State) FileOnly() bool { return s >= Unread && s <= Unreadable }

// Settled reports whether the file of the code is known.
func (s State) Settled() bool { return s != Unread && s != Pending }

// Options are the settings of a Namer.
type Options struct {
	// HostRoot is the host's root folder; "" means /.
	HostRoot string
	// Tables holds the symbol tables. The Namer uses them until Close.
	Tables *symbols.Shared
	// Unwatched says that the kernel does not report new processes.
	Unwatched bool
}

// Namer names the code of processes. Its methods are safe for concurrent use. Its goroutines run until Close.
type Namer struct {
	processes *procmap.Resolver
	tables    *symbols.Shared
	store     *symbols.Store
}

// New returns a running Namer.
func New(o Options) *Namer {
	store := o.Tables.Acquire()
	return &Namer{
		processes: procmap.New(procmap.Options{Root: o.HostRoot, Unwatched: o.Unwatched, Identify: store.Info}),
		tables:    o.Tables, store: store,
	}
}

// Close ends the Namer. It waits for a running read, for some seconds at most. Afterwards, Resolve still returns what is known.
func (n *Namer) Close() {
	n.processes.Close()
	n.tables.Release()
}

// Err returns why nothing is known about any process: see procmap.Resolver.
func (n *Namer) Err() error { return n.processes.Err() }

// Stats returns the counters of processes, and the error of the last file that could not be read.
func (n *Namer) Stats() (procmap.Stats, error) { return n.processes.Stats(), n.store.LastError() }

// KeepFor makes the Namer keep a file's tables for at least d after their last use.
func (n *Namer) KeepFor(d time.Duration) { n.store.KeepFor(d) }

// places reuses the memory of look-ups.
var places = sync.Pool{New: func() any { return new(scratch) }}

type scratch struct {
	addrs  []uint64
	places []procmap.Place
}

// Resolve appends the frames of a stack to dst, the innermost first. All addresses but the first are return addresses, one
// instruction past the call. So it looks up one byte less, which lies in the call. If pending is true, a later call knows more.
//
// seen is when the kernel saw the stack, in nanoseconds since boot, or 0 if unknown.
func (n *Namer) Resolve(dst []Frame, p procmap.Process, seen uint64, addrs []uint64) (frames []Frame, pending bool) {
	s := places.Get().(*scratch)
	defer places.Put(s)
	s.addrs = s.addrs[:0]
	for i, addr := range addrs {
		if i > 0 && addr > 0 {
			addr--
		}
		s.addrs = append(s.addrs, addr)
	}
	s.places, _ = n.processes.Locate(s.places[:0], p, seen, s.addrs)
	for i := range s.places {
		f, grows := n.frame(&s.places[i], seen, i > 0)
		pending = pending || grows || !f.State.Settled()
		dst = append(dst, f)
	}
	clear(s.places) // so that the pool keeps no files alive
	return dst, pending
}

// readSince reports whether a file was read since seen, in nanoseconds since boot. It returns true if seen is unknown.
func (n *Namer) readSince(id symtab.FileID, seen uint64) bool {
	now := procfs.SinceBoot()
	return seen == 0 || seen > now || n.store.ReadSince(id, time.Now().Add(-time.Duration(now-seen)))
}

// frame resolves a place in a stack. caller says that the address is one byte less than in the stack. grows says that the code
// is Generated, and that the perf map was last read before seen. The next read can name the code.
func (n *Namer) frame(p *procmap.Place, seen uint64, caller bool) (f Frame, grows bool) {
	f = Frame{File: p.File, Offset: p.Offset, Address: p.Address}
	switch p.State {
	case procmap.Pending:
		f.State = Pending
		return f, false
	case procmap.Unreadable:
		f.State = Unreadable
		return f, false
	case procmap.Gone:
		f.State = Gone
		return f, false
	case procmap.Generated:
		f.State, f.File, f.Address = Generated, nil, 0
		if p.File == nil {
			return f, false
		}
		s, state := n.Lookup(p.File, p.Address)
		if state == symtab.Outside { // the perf map may have grown since it was read
			state = n.request(p.File, p.Address)
		}
		switch {
		case state == symtab.Pending:
			f.State = Pending
		case state == symtab.Named && s.Name != "":
			f.Symbol, f.State = s, Named
		case state == symtab.Named:
			grows = !n.readSince(p.File.ID, seen)
		}
		return f, grows
	case procmap.Known:
	default:
		f.State = NotCode
		return f, false
	}
	var state symtab.State
	f.Symbol, state = n.Lookup(p.File, p.Address)
	if caller && state == symtab.Outside {
		// A signal handler returns to the first byte of a function that nobody has called, so one byte less is outside of it.
		// Only these functions are accepted: any other would follow a nameless function that ends in a call.
		if s, st := n.Lookup(p.File, p.Address+1); st == symtab.Named && slices.Contains(restorers, s.Name) {
			f.Symbol, state = s, st
			f.Address++
			f.Offset++
		}
	}
	switch state {
	case symtab.Named:
		f.State = Named
	case symtab.Pending, symtab.Unknown, symtab.Busy:
		f.State = Unread
	case symtab.Gone:
		f.State = Replaced
	case symtab.Outside:
		f.State = Outside
	case symtab.NoSymbols:
		f.State = NoSymbols
	default:
		f.State = BadSymbols
	}
	return f, false
}

// restorers are the functions to which signal handlers return: glibc's and musl's, and the vdso's of arm64.
var restorers = []string{"__restore_rt", "__restore", "__kernel_rt_sigreturn"}

// File returns a file that another program has reported: see procmap.Resolver.File.
func (n *Namer) File(t procmap.ReportedFile, mapped ...procmap.Mapping) (file *procmap.File, pending bool) {
	return n.processes.File(t, mapped...)
}

// Lookup returns the function at an address in a file's symbol tables. It requests the file if nobody has.
func (n *Namer) Lookup(file *procmap.File, addr uint64) (function symtab.Symbol, state symtab.State) {
	function, state = n.store.Lookup(file.ID, addr)
	if state == symtab.Unknown {
		state = n.request(file, addr)
		if state == symtab.Named && function.Name == "" { // another goroutine was faster
			return n.store.Lookup(file.ID, addr)
		}
	}
	return function, state
}

func (n *Namer) request(file *procmap.File, addr uint64) symtab.State {
	return n.store.Request(symbols.Request{
		ID: file.ID, Info: file.Info, Path: file.Path, Address: addr, Open: file.Open, Root: file.Root, Stuck: file.Stuck,
	})
}

// ResolveWithin is Resolve for callers that can wait. It waits up to that time for files and processes being read, but not for a
// perf map to grow.
func (n *Namer) ResolveWithin(dst []Frame, wait time.Duration, p procmap.Process, seen uint64, addrs []uint64) []Frame {
	start := len(dst)
	changed := n.processes.Changed()
	frames, pending := n.Resolve(dst, p, seen, addrs)
	if !pending || wait <= 0 {
		return frames
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	const maxRounds = 3 // functions requested during a read of the file need another read
	for rounds := 0; pending && ctx.Err() == nil; {
		var files []symtab.FileID
		process := false
		for i := range frames[start:] {
			switch f := &frames[start+i]; f.State {
			case Unread:
				files = append(files, f.File.ID)
			case Pending:
				process = true
			default:
			}
		}
		switch {
		case !process && len(files) == 0:
			return frames
		case process:
			select {
			case <-changed:
			case <-ctx.Done():
			}
		case !n.store.Wait(ctx, files...):
			cancel()
		}
		changed = n.processes.Changed()
		frames, pending = n.Resolve(frames[:start], p, seen, addrs)
		// The table is evicted right after each read, because Options.Bytes is too small: do not wait again.
		if rounds++; rounds == maxRounds && !process {
			break
		}
	}
	return frames
}

// isGoName reports whether the name of a function in a Go program is a Go name: main.work, or example.com/mod/pkg.(*T).Method. C
// compilers add suffixes after a dot (f.cold, f.isra.0), and mangled names are C++ or Rust.
func isGoName(name string) bool {
	if strings.HasPrefix(name, "_") {
		return false
	}
	pkg, function, ok := strings.Cut(name[strings.LastIndexByte(beforeBracket(name), '/')+1:], ".")
	if !ok || pkg == "" {
		return false
	}
	suffix, _, _ := strings.Cut(function, ".")
	switch suffix {
	case "", "cold", "isra", "part", "constprop", "lto_priv", "llvm", "localalias":
		return false
	}
	return true
}

// beforeBracket removes type parameters, because they have packages of their own.
func beforeBracket(name string) string {
	before, _, _ := strings.Cut(name, "[")
	return before
}
