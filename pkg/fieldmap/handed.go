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
	// Frames appends the frames of a stack, leaf first, and returns the outcome. pending reports that more can become known
	// later. Frames is called while a row with the ID is being delivered, in the same goroutine.
	Frames(dst []profile.Frame, id uint64, form FileForm) (frames []profile.Frame, outcome stack.Outcome, pending bool)
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
func (noStacks) Frames(dst []profile.Frame, id uint64, _ FileForm) (frames []profile.Frame, outcome stack.Outcome, pending bool) {
	if id == 0 {
		return dst, stack.Empty, false
	}
	return dst, stack.Lost, false
}
