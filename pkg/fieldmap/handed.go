package fieldmap

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// StackTag marks a field that holds the ID of a stack whose frames an operator provides. The ID is an unsigned 64-bit number
// and is never reused. The operator sets the gadget's variable StacksVar to a Stacks.
const StackTag = "type:profiles_stack"

// WholeStack is a member that an operator adds to Inspektor Gadget's user stack. It holds a stack ID as described at StackTag.
// If the ID is not 0, its stack replaces the frame-pointer stack.
const WholeStack = "whole"

// StacksVar is the gadget's variable that holds the Stacks of its rows.
const StacksVar = "profiles.stacks"

// TablesVar is the gadget's variable that holds the process's *symbols.Shared. Operators that name functions themselves use it,
// so the common settings and limits apply. It is set before the gadget starts.
const TablesVar = "profiles.tables"

// Stacks returns the frames of stacks by ID.
type Stacks interface {
	// Frames appends the frames of a stack, leaf first, and returns the outcome. unnamed is nil if no more names can become
	// known. Frames is called while a row with the ID is being delivered, in the same goroutine.
	Frames(dst []profile.Frame, id uint64, form FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed Unnamed)
}

// Unnamed is a stack with names that are not known yet. It outlives the row. Its methods can be called in any goroutine.
type Unnamed interface {
	// UserFrames appends the stack's user frames with the names that are known now. They follow the stack's kernel frames.
	// pending reports that more names can become known.
	UserFrames(dst []profile.Frame) (frames []profile.Frame, pending bool)
	// Size estimates the memory in bytes.
	Size() int
}

// lateNames are the user frames of an operator's stack. It implements profile.Later.
type lateNames struct {
	Unnamed
	// With checkRoot, the outermost of these frames decides whether the stack is complete. With mark, an incomplete stack gets
	// a frame at its root.
	checkRoot, mark bool
}

// Frames implements profile.Later.
func (l *lateNames) Frames(dst []profile.Frame, _ bool) (frames []profile.Frame, fate profile.Fate, all bool) {
	start := len(dst)
	dst, pending := l.UserFrames(dst)
	if l.checkRoot && len(dst) > start && !begins(dst[start:]) {
		fate = profile.Incomplete
		if l.mark {
			dst = append(dst, profile.Frame{Name: rootIncomplete})
		}
	}
	return dst, fate, !pending
}

// userFramesFrom returns the index of the first user frame from start on.
func userFramesFrom(frames []profile.Frame, start int) int {
	for start < len(frames) && frames[start].Type == profile.FrameKernel {
		start++
	}
	return start
}

// FileForm is the exported form of the files of user frames.
type FileForm struct {
	// Files is the setting mappings_from_proc. Without it, whole stacks have neither files nor addresses.
	Files bool
	// Offsets is the setting file_addresses: offset. Addresses are then offsets in files.
	Offsets bool
}

// handedStack treats a field as the ID of a stack whose frames an operator provides. Without that operator, for example in
// other programs, the gadget has no such stacks, and the IDs are 0.
func (c *compiler) handedStack(acc datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: acc.FullName(), id: newReader(c.ds, acc), handed: c.o.Stacks, form: c.plan.settings.FileForm}
	if acc.Type() != api.Kind_Uint64 {
		return f, fmt.Errorf("data source %q: the stack %q is not an unsigned 64-bit number", c.ds.Name(), acc.FullName())
	}
	if f.handed == nil {
		f.handed = noStacks{}
	}
	return f, nil
}

// noStacks is the Stacks of a gadget without the operator.
type noStacks struct{}

// Frames implements Stacks.
func (noStacks) Frames(dst []profile.Frame, id uint64, _ FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed Unnamed) {
	if id == 0 {
		return dst, stack.Empty, nil
	}
	return dst, stack.Lost, nil
}
