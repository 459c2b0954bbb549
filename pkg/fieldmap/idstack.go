package fieldmap

import (
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// HasIDs reports whether a data source can have stacks by ID.
func HasIDs(ds datasource.DataSource) bool {
	return len(ds.GetFieldsWithTag(kernelIDTag))+len(ds.GetFieldsWithTag(userIDTag)) > 0
}

// Present hides fields of this project's gadgets (gadgets/include) in columns and JSON. It hides stack IDs and cgroup IDs,
// because only this package can read them. It shows the text of user stacks.
func Present(ds datasource.DataSource) {
	for _, tag := range []string{kernelIDTag, userIDTag, stackKeyTag, cgroupTag, StackTag} {
		for _, acc := range ds.GetFieldsWithTag(tag) {
			for _, f := range append(acc.SubFields(), acc) {
				f.SetHidden(true, false)
				f.AddAnnotation("json.skip", "true")
			}
		}
	}
	// This hides the struct and not its members.
	for _, acc := range ds.GetFieldsWithTag(processTag) {
		acc.SetHidden(true, false)
	}
	if HasIDs(ds) {
		for _, raw := range ds.GetFieldsWithTag(userStackTag) {
			for _, f := range raw.SubFields() {
				if f.Name() == "symbols" {
					f.SetHidden(false, false)
				}
			}
		}
	}
}

// unnamed counts kernel stacks with functions that could not be named, and holds the last reason. Callers can call Stats while
// rows are read.
type unnamed struct {
	n      atomic.Uint64
	reason atomic.Pointer[error]
}

// addByID adds the fields with stack IDs. A gadget can declare a stack both as text and as ID, and fill in either, so both are
// read. annotated reports that an annotation names the stacks. Then a kind (kernel or user) is only added if the annotation
// names its text but not its ID.
func (c *compiler) addByID(annotated bool) error {
	for _, kind := range []struct {
		tag    string
		member func(*stackField) bool
		make   func(datasource.FieldAccessor) (stackField, error)
	}{
		{kernelIDTag, func(f *stackField) bool { return f.kernel != nil }, c.kernelByID},
		{userIDTag, func(f *stackField) bool { return f.user != nil }, c.userByID},
	} {
		text, byID := false, false
		for i := range c.plan.stacks {
			f := &c.plan.stacks[i]
			text = text || kind.member(f) && !f.byID
			byID = byID || kind.member(f) && f.byID
		}
		if byID || annotated && !text {
			continue
		}
		found := c.firstStack(kind.tag, datasource.FieldAccessor.FullName)
		if found == "" {
			continue
		}
		f, err := kind.make(c.byName[found])
		if err != nil {
			return err
		}
		c.add(f)
	}
	return nil
}

func (c *compiler) kernelByID(acc datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: acc.FullName(), byID: true, id: newReader(c.ds, acc), unnamed: &c.plan.unnamed}
	if !isID(acc) {
		return f, fmt.Errorf("data source %q: the kernel stack %q is not a 32-bit number: declare it as \"typedef __u32 profiles_kernel_stack\"", c.ds.Name(), acc.FullName())
	}
	if err := c.checkMap(acc, ebpftypes.KernelStackMapName); err != nil {
		return f, err
	}
	f.kernel = c.kernel()
	return f, nil
}

func isID(acc datasource.FieldAccessor) bool {
	return acc.Type() == api.Kind_Uint32 || acc.Type() == api.Kind_Int32
}

func (c *compiler) userByID(raw datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: raw.FullName(), byID: true, namer: c.o.Names}
	missing := c.members(raw, f.processMembers())
	if missing == "" && !isID(f.id.acc) {
		missing = "stack_id"
	}
	if missing != "" {
		return f, fmt.Errorf("data source %q: the user stack %q has no member %q of the right type: use the members of struct gadget_user_stack", c.ds.Name(), raw.FullName(), missing)
	}
	if err := c.checkMap(raw, ebpftypes.UserStackMapName); err != nil {
		return f, err
	}
	f.user = stack.NewUser(stack.UserOptions{Map: c.o.UserMap, BuildIDs: c.o.BuildIDMap})
	return f, nil
}

// checkMap returns an error if the stacks of a field cannot be looked up in the named map. The map must never reuse an ID for
// another stack, because this package caches stacks by ID.
func (c *compiler) checkMap(acc datasource.FieldAccessor, name string) error {
	var spec *ebpf.MapSpec
	if c.o.MapSpec != nil {
		spec = c.o.MapSpec(name)
	}
	switch {
	case spec == nil:
		return fmt.Errorf("data source %q: the stack %q needs a map that the gadget does not have: %s", c.ds.Name(), acc.FullName(), name)
	case spec.Type != ebpf.Hash && spec.Type != ebpf.LRUHash:
		return fmt.Errorf("data source %q: the map %s is of type %s, which can reuse the ID of %q for another stack: use an LRU hash map with hashes of stacks as IDs",
			c.ds.Name(), name, spec.Type, acc.FullName())
	case spec.KeySize != 4 || spec.ValueSize == 0 || spec.ValueSize%8 != 0:
		return fmt.Errorf("data source %q: the map %s of %q has keys of %d and values of %d bytes: a key must be a __u32, a value a list of __u64 addresses",
			c.ds.Name(), name, acc.FullName(), spec.KeySize, spec.ValueSize)
	}
	return nil
}

// appendByID appends the frames of a stack by ID. pending reports that the stack was not found but can be in the map later.
func (f *stackField) appendByID(dst []profile.Frame, d datasource.Data) (out []profile.Frame, o stack.Outcome, pending bool) {
	id, ok := f.stackID(d)
	if !ok {
		return dst, stack.Empty, false
	}
	if f.kernel == nil {
		out, o = f.user.AppendID(dst, id)
		return out, o, o == stack.Lost && id > 0
	}
	out, o, err := f.kernel.AppendID(dst, id)
	if err != nil {
		f.unnamed.reason.Store(&err) // before n, so each reader of n finds a reason
		f.unnamed.n.Add(1)
	}
	return out, o, o == stack.Lost && id > 0
}
