package unwinder

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// stacksVar is the gadget variable in which the exporter finds the frames of rows.
const stacksVar = fieldmap.StacksVar

// rows holds the stacks of the rows that are being passed on. The goroutine that passes on the rows calls framesOf.
type rows struct {
	// userOnly omits kernel frames.
	userOnly   bool
	names      *names.Namer // nil: native functions have no names
	kernel     func() *stack.Kernel
	containers containers
	stacks     map[uint64]*wire.Stack // keyed by the stack's ID
	settled    map[uint64]struct{}    // IDs of stacks with complete names
	texts      strings.Builder
	functions  []string // reused for each stack
}

// newRows returns the rows of a run. With keepTracing, kernel stacks keep tracing functions, because samples can hit these
// functions.
func newRows(keepTracing bool) rows {
	return rows{stacks: map[uint64]*wire.Stack{}, kernel: sync.OnceValue(func() *stack.Kernel {
		known, _ := stack.HostSymbols() // symbols that cannot be read are omitted
		return stack.NewKernel(stack.KernelOptions{Symbols: known, KeepTracing: keepTracing})
	})}
}

// framesOf appends the frames of a stack. s is nil if the stack was lost.
func (r *rows) framesOf(dst []profile.Frame, s *wire.Stack, form fieldmap.FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed fieldmap.Unnamed) {
	if s == nil {
		return dst, stack.Lost, nil
	}
	kernel := kernelFrames(s.Frames)
	user := userFrames{r, s.Frames[kernel:], form}
	dst, pending := user.UserFrames(r.inKernel(dst, s.Frames[:kernel]))
	if pending {
		later := user // a copy, so that only stacks with unknown names allocate
		unnamed = &later
	}
	if s.Abort != 0 {
		return dst, stack.Truncated, unnamed
	}
	return dst, stack.OK, unnamed
}

// userFrames are the user frames of a stack. It implements fieldmap.Unnamed.
type userFrames struct {
	rows   *rows
	frames []*wire.Frame
	form   fieldmap.FileForm
}

// UserFrames implements fieldmap.Unnamed. Of rows, it only uses names, which can be used in any goroutine.
func (u *userFrames) UserFrames(dst []profile.Frame) (frames []profile.Frame, pending bool) {
	for i, f := range u.frames {
		var more bool
		dst, more = u.rows.frame(dst, f, i > 0 && i+1 < len(u.frames), u.form)
		pending = pending || more
	}
	return dst, pending
}

// Size implements fieldmap.Unnamed. Stacks share frames, so each frame only counts with its pointer and part of its memory.
func (u *userFrames) Size() int { return 64 + 24*len(u.frames) }

// inKernel appends kernel frames with names only. Addresses would reveal where the kernel was loaded.
func (r *rows) inKernel(dst []profile.Frame, frames []*wire.Frame) []profile.Frame {
	if len(frames) == 0 || r.userOnly {
		return dst
	}
	var text []byte
	for _, f := range frames {
		text = append(append(text, cmp.Or(f.Function, stack.Unknown)...), "; "...)
	}
	dst, _ = r.kernel().Append(dst, text, 0, false)
	return dst
}

// kernelFrames counts the kernel frames, which come first.
func kernelFrames(frames []*wire.Frame) int {
	for i, f := range frames {
		if f.Type != wire.FrameKernel {
			return i
		}
	}
	return len(frames)
}

// byAddress reports whether a frame's function is looked up by its address.
func byAddress(f *wire.Frame) bool {
	return f.Function == "" && f.Mapping != nil && f.Mapping.File != nil
}

// frame appends a user frame, and then the functions that it was inlined into. If pending is true, the name can become known
// later. A wrapper that Go generates for a method is omitted if it is between two other user frames. The innermost frame stays,
// because in its first and last instructions, the next frame is not its caller.
func (r *rows) frame(dst []profile.Frame, f *wire.Frame, between bool, form fieldmap.FileForm) (frames []profile.Frame, pending bool) {
	out := profile.Frame{
		Name: f.Function, File: f.File, Line: int64(min(f.Line, 1<<31)), Type: profile.FrameType(f.Type.String()), Address: f.Address,
	}
	m := f.Mapping
	if m == nil || m.File == nil {
		// An address without a file is useless outside the process, and would reveal the memory layout.
		out.Address = 0
		out.Name = cmp.Or(out.Name, stack.Unknown)
		return append(dst, out), false
	}
	var symbol symtab.Symbol
	if byAddress(f) {
		symbol, pending = r.lookup(m.File, nil, f.Address)
		fieldmap.SetSymbol(&out, &symbol)
		if known := (&names.Frame{Symbol: symbol}); known.Go(symbol.Name) {
			out.Type = profile.FrameGo
		}
		if between && symbol.Wrapper() {
			return dst, pending
		}
	}
	if path := cmp.Or(m.File.Path, m.File.Name); form.Files {
		out.Mapping = profile.Mapping{
			File: path, GNUBuildID: m.File.GNUBuildID, GoBuildID: m.File.GoBuildID, HTLHash: m.File.HashText(), Symbolized: out.Name != "",
		}
		if form.Offsets {
			if out.Address = 0; m.Start <= f.Address && f.Address < m.End {
				out.Address = f.Address - m.Start + m.Offset
			}
		}
	} else {
		out.Address, out.Name = 0, cmp.Or(out.Name, stack.CutName(profile.FileName(path)))
	}
	return fieldmap.AppendInlined(dst, &out, &symbol), pending
}

// want requests a stack's files. So the names are ready when the stack's rows are passed on. It reports whether some files are
// still being read.
func (r *rows) want(s *wire.Stack, proc *wire.Proc) (pending bool) {
	for _, f := range s.Frames {
		if byAddress(f) {
			_, more := r.lookup(f.Mapping.File, proc, f.Address)
			pending = pending || more
		}
	}
	return pending
}

// unnamed reports whether names for a stack are still being read. Call it in the goroutine that calls framesOf.
func (r *rows) unnamed(s *wire.Stack, proc *wire.Proc) bool {
	if _, known := r.settled[s.ID]; known {
		return false
	}
	if r.want(s, proc) {
		return true
	}
	if r.settled == nil || len(r.settled) >= maxWaiting {
		r.settled = map[uint64]struct{}{}
	}
	r.settled[s.ID] = struct{}{}
	return false
}

// format returns a stack's text in Inspektor Gadget's format: leaf first, each function followed by "; ".
func (r *rows) format(frames []*wire.Frame) string {
	r.texts.Reset()
	for _, f := range frames {
		r.functions, _ = r.text(r.functions[:0], f)
		for _, name := range r.functions {
			r.texts.WriteString(name + "; ")
		}
	}
	return r.texts.String()
}

// text appends a frame's text, and then the text of the functions that it was inlined into. If pending is true, more names can
// become known later.
func (r *rows) text(dst []string, f *wire.Frame) (texts []string, pending bool) {
	name, m := f.Function, f.Mapping
	if byAddress(f) {
		var symbol symtab.Symbol
		symbol, pending = r.lookup(m.File, nil, f.Address)
		for _, c := range symbol.Callers {
			dst = append(dst, printable.Clean(stack.Demangle(symbol.Name)))
			symbol = c
		}
		name = printable.Clean(stack.Demangle(symbol.Name))
	}
	if name == "" && m != nil && m.File != nil && m.File.Name != "" {
		name = fmt.Sprintf("%s+0x%x", m.File.Name, f.Address)
	}
	return append(dst, cmp.Or(name, stack.Unknown)), pending
}
