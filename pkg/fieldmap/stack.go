package fieldmap

import (
	"fmt"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

const (
	kernelStackTag = "type:" + ebpftypes.KernelStackTypeName
	userStackTag   = "type:" + ebpftypes.UserStackTypeName

	// This project defines these stack types. Inspektor Gadget (IG) does not format them: a row only holds their IDs.
	kernelIDType = "profiles_kernel_stack"
	userIDType   = "profiles_user_stack"
	kernelIDTag  = "type:" + kernelIDType
	userIDTag    = "type:" + userIDType

	// These types accompany the stack types (see gadgets/include).
	stackKeyTag = "type:profiles_stack_key"
	processTag  = "type:profiles_process"
	cgroupTag   = "type:profiles_cgroup_id"

	// kernelTargetAnnotation names the field that IG formats a kernel stack into.
	kernelTargetAnnotation = "ebpf.formatter.kstack"
)

// stackFields are the fields of a row's stack from leaf to root, so kernel stacks come before user stacks.
type stackFields []stackField

// stackField reads one stack of a row. A stack has one of several forms, and only the members of that form are set.
type stackField struct {
	name string
	// text is the field with the stack as text.
	text  reader
	names []byte // a copy of the last row's text, which the names of frames point into
	// id is the field with the raw stack ID. Its acc is nil if the row has none.
	id reader

	kernel *stack.Kernel

	plain *stack.User // for a text field of another type

	user                       *stack.User
	addresses, buildIDs, inode reader

	namer               Namer // if nil, frames stay as in the row
	pid, space, seen    reader
	mtimeSec, mtimeNsec reader

	// handed provides the frames of a stack that an operator hands over. It is nil in all other forms.
	handed Stacks
	// form is for the stacks of handed and wholes.
	form FileForm
	// whole is the ID of the user stack in wholes, or 0.
	whole  reader
	wholes Stacks

	// byID reports that there is no text, so id is looked up in the gadget's maps.
	byID    bool
	unnamed *unnamed // the Plan's counter, only for kernel stacks by ID
}

// stack finds the stack fields by the annotation, or else by their types.
func (c *compiler) stack() error {
	names := SplitList(c.ann[annStackFields])
	annotated := len(names) > 0
	if !annotated {
		names = c.discover()
	}
	for _, name := range names {
		acc := c.field(name)
		if acc == nil {
			return c.missing(annStackFields, name)
		}
		f, err := c.stackField(acc)
		if err != nil {
			return err
		}
		c.add(f)
	}
	if err := c.addByID(annotated); err != nil {
		return err
	}
	if len(c.plan.stacks) == 0 {
		return fmt.Errorf("data source %q: %w: it has no field of type %s, %s, %s or %s, and no annotation %s",
			c.ds.Name(), ErrNoStack, ebpftypes.KernelStackTypeName, ebpftypes.UserStackTypeName, kernelIDType, userIDType, annStackFields)
	}
	return nil
}

// add adds f to the sample's stack fields, and its readers to stackKeyFields, which distinguish stacks.
func (c *compiler) add(f stackField) {
	p := c.plan
	for i := range p.stacks {
		if p.stacks[i].name == f.name {
			c.warnf("%s names the stack %q twice: it is used once", annStackFields, f.name)
			return
		}
	}
	p.stacks = append(p.stacks, f)
	// The ID distinguishes a lost stack from one that was not collected. A kernel stack's ID also separates stacks with equal
	// names, because their addresses are not in the row. A user stack's ID must not: gadgets can give the same stack another ID
	// in each process.
	id := f.id
	id.errno = f.user != nil && !f.byID
	rs := []reader{f.text, f.addresses, f.buildIDs, id, f.whole}
	if f.user != nil && f.namer != nil || f.byID {
		// The process also distinguishes stacks. Without address randomization, different programs have the same addresses, and
		// gadgets can give stacks of several processes the same ID.
		rs = append(rs, f.inode, f.space)
	}
	for _, r := range rs {
		if r.acc != nil {
			p.stackKeyFields = append(p.stackKeyFields, r)
		}
	}
}

// discover finds the stack fields of a data source by their types, kernel before user. It returns the names of their text
// fields.
func (c *compiler) discover() (names []string) {
	for _, tag := range []string{kernelStackTag, userStackTag} {
		if name := c.firstStack(tag, func(raw datasource.FieldAccessor) string {
			name := raw.FullName() + ".symbols"
			if tag == kernelStackTag {
				name = targetName(raw, kernelTargetAnnotation)
			}
			if acc := c.byName[name]; acc == nil || acc.Type() != api.Kind_String {
				c.debugf("the stack in the field %q is left out: there is no field %q with its text", raw.FullName(), name)
				return ""
			}
			return name
		}); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// firstStack returns the first field with a tag, under the name from nameOf. If that name is "", the field is skipped. Several
// stacks of one kind are separate stacks and not parts of one, so only the first is used.
func (c *compiler) firstStack(tag string, nameOf func(datasource.FieldAccessor) string) (found string) {
	var others []string
	for _, raw := range c.ds.GetFieldsWithTag(tag) {
		if datasource.FieldFlagUnreferenced.In(raw.Flags()) {
			continue
		}
		switch name := nameOf(raw); {
		case name == "":
		case found == "":
			found = name
		default:
			others = append(others, plainName(name))
		}
	}
	if len(others) > 0 {
		c.warnf("exporting the stack %s instead of %s: to choose another stack, set %s", plainName(found), strings.Join(others, ", "), annStackFields)
	}
	return found
}

// stackField returns the stack that a field belongs to. A stack can have several fields, for example the raw field and its
// text. The annotation can name any of them.
func (c *compiler) stackField(acc datasource.FieldAccessor) (stackField, error) {
	if raw := structOf(acc, userStackTag); raw != nil {
		return c.userStack(raw)
	}
	if acc.HasAnyTagsOf(StackTag) {
		return c.handedStack(acc)
	}
	if acc.HasAnyTagsOf(kernelIDTag) {
		return c.kernelByID(acc)
	}
	if raw := structOf(acc, userIDTag); raw != nil {
		return c.userByID(raw)
	}
	for _, raw := range c.ds.GetFieldsWithTag(kernelStackTag) {
		target := targetName(raw, kernelTargetAnnotation)
		if target == "" || acc.FullName() != target && acc.FullName() != raw.FullName() {
			continue
		}
		text := c.byName[target]
		if text == nil {
			return stackField{}, fmt.Errorf("data source %q: the kernel stack %q has no field %q with its text",
				c.ds.Name(), raw.FullName(), target)
		}
		return c.kernelStack(text, raw), nil
	}
	switch acc.Type() {
	case api.Kind_String, api.Kind_CString:
		return stackField{name: acc.FullName(), text: newReader(c.ds, acc), plain: stack.NewUser(stack.UserOptions{Plain: true})}, nil
	}
	return stackField{}, fmt.Errorf("data source %q: the field %q in %s is not a stack: name a text field, a %s, %s, %s or %s",
		c.ds.Name(), acc.FullName(), annStackFields, ebpftypes.KernelStackTypeName, ebpftypes.UserStackTypeName, kernelIDType, userIDType)
}

// structOf returns acc if it has the tag, otherwise the parent struct with the tag, otherwise nil.
func structOf(acc datasource.FieldAccessor, tag string) datasource.FieldAccessor {
	if acc.HasAnyTagsOf(tag) {
		return acc
	}
	if parent := acc.Parent(); parent != nil && parent.HasAnyTagsOf(tag) {
		return parent
	}
	return nil
}

func (c *compiler) kernelStack(text, raw datasource.FieldAccessor) stackField {
	return stackField{name: text.FullName(), text: newReader(c.ds, text), id: newReader(c.ds, raw), kernel: c.kernel()}
}

func (c *compiler) kernel() *stack.Kernel {
	symbols := c.o.KernelSymbols
	if symbols == nil {
		var err error
		if symbols, err = stack.HostSymbols(); err != nil {
			c.debugf("kernel frames may lack addresses: %v", err)
		}
	}
	c.plan.kernelSymbols = symbols
	c.plan.rawKernel = c.o.Exporter.KernelAddresses == "raw"
	return stack.NewKernel(stack.KernelOptions{
		Map:          c.o.KernelMap,
		RawAddresses: c.plan.rawKernel,
		Symbols:      symbols,
		// In an event's stack, the innermost functions call the gadget's own program. They are dropped. In a sampler's stack,
		// frames of tracing are time that the workload spends.
		KeepTracing: IsSampler(c.o.Gadget.Config),
	})
}

func (c *compiler) userStack(raw datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: raw.FullName(), user: stack.NewUser(stack.UserOptions{}), namer: c.o.Names, form: c.plan.settings.FileForm}
	c.members(raw, f.processMembers())
	c.members(raw, map[string]*reader{"symbols": &f.text, "addresses": &f.addresses, "buildid": &f.buildIDs})
	if f.wholes = c.o.Stacks; f.wholes != nil {
		c.members(raw, map[string]*reader{WholeStack: &f.whole})
	}
	if f.text.acc == nil && f.addresses.acc == nil {
		return stackField{}, c.missing(annStackFields, raw.FullName()+".symbols")
	}
	return f, nil
}

// processMembers returns the readers of struct gadget_user_stack, as Inspektor Gadget defines it.
func (f *stackField) processMembers() map[string]*reader {
	return map[string]*reader{
		"tgid_level0": &f.pid, "base_addr_hash": &f.space, "boot_timestamp": &f.seen, "stack_id": &f.id,
		"inode": &f.inode, "mtime_sec": &f.mtimeSec, "mtime_nsec": &f.mtimeNsec,
	}
}

// members makes the readers of a struct's members, and returns the name of a missing member.
func (c *compiler) members(raw datasource.FieldAccessor, readers map[string]*reader) (missing string) {
	for name, r := range readers {
		if acc := c.byName[raw.FullName()+"."+name]; acc != nil {
			*r = newReader(c.ds, acc)
		} else {
			missing = name
		}
	}
	return missing
}

// read reads the stacks of all fields into st.
func (s stackFields) read(st *Stack, d datasource.Data) {
	st.frames, st.ends, st.fates, st.users = st.frames[:0], st.ends[:0], st.fates[:0], st.users[:0]
	st.pending, st.unnamed = false, nil
	if s.handedOver(st, d) {
		return
	}
	for i := range s {
		from := len(st.frames)
		o, more, whole := stack.Empty, false, false
		if id := s[i].whole.number(d); id != 0 {
			var unnamed Unnamed
			st.frames, o, unnamed = s[i].wholes.Frames(st.frames, id, s[i].form)
			whole = len(st.frames) > from
			st.late(unnamed, i, from)
		}
		if !whole {
			st.frames, o, more = s[i].append(st.frames, d)
		}
		st.ends, st.fates = append(st.ends, len(st.frames)), append(st.fates, o)
		if s[i].user != nil && len(st.frames) > from && !whole {
			s[i].userFrames(st, i, from, d)
		}
		st.pending = st.pending || more
	}
}

// handedOver reads the stack that an operator hands over, if any. That is the sample's whole stack. The other fields are then
// empty, or hold the stack's text for printed rows.
func (s stackFields) handedOver(st *Stack, d datasource.Data) bool {
	for i := range s {
		if s[i].handed == nil {
			continue
		}
		var outcome stack.Outcome
		var unnamed Unnamed
		st.frames, outcome, unnamed = s[i].handed.Frames(st.frames, s[i].id.number(d), s[i].form)
		if len(st.frames) == 0 {
			continue
		}
		st.late(unnamed, i, 0)
		for k := range s {
			end, fate := len(st.frames), stack.Empty
			if k < i {
				end = 0
			} else if k == i {
				fate = outcome
			}
			st.ends, st.fates = append(st.ends, end), append(st.fates, fate)
		}
		return true
	}
	return false
}

// late records that the names of a field's frames are not known yet. The frames are at the end of st.frames, from start on.
func (st *Stack) late(unnamed Unnamed, field, start int) {
	switch {
	case unnamed == nil:
	case st.unnamed != nil:
		st.pending = true // a sample has one profile.Later
	default:
		st.unnamed, st.unnamedField, st.unnamedFrames = unnamed, field, len(st.frames)-userFramesFrom(st.frames, start)
	}
}

// append appends the frames of one field. pending reports that more can become known about them later.
func (f *stackField) append(dst []profile.Frame, d datasource.Data) (out []profile.Frame, o stack.Outcome, pending bool) {
	if f.byID {
		return f.appendByID(dst, d)
	}
	if f.handed != nil {
		dst, o, _ = f.handed.Frames(dst, f.id.number(d), f.form)
		return dst, o, false
	}
	// The frames must not point into the row's memory. They are used before the next row overwrites names.
	text := f.text.guarded(d)
	f.names = append(f.names[:0], text[:min(len(text), stack.MaxTextLen+1)]...)
	text = f.names
	switch {
	case f.kernel != nil:
		id, ok := f.stackID(d)
		out, o = f.kernel.Append(dst, text, id, ok)
	case f.user != nil:
		out, o = f.user.Append(dst, text, f.addresses.guarded(d), f.buildIDs.guarded(d))
		if o == stack.Empty {
			id, ok := f.stackID(d)
			o = stack.Missing(id, ok)
		}
	default:
		out, o = f.plain.Append(dst, text, nil, nil)
	}
	return out, o, false
}

// number returns the unsigned number in the field, or 0 if it is missing.
func (r *reader) number(d datasource.Data) uint64 {
	b := r.guarded(d)
	if len(b) == 0 || len(b) != r.width {
		return 0
	}
	return r.load(b)
}

// stackID returns the stack ID, or negative error, that the gadget's program stored. It returns false if the program collected
// no stack.
func (f *stackField) stackID(d datasource.Data) (int32, bool) {
	b := f.id.guarded(d)
	if len(b) != 4 {
		return 0, false
	}
	if f.inode.acc != nil { // of the executable; 0 if user stacks are disabled
		if b := f.inode.guarded(d); len(b) == 0 || f.inode.load(b) == 0 {
			return 0, false
		}
	}
	return int32(f.id.load(b)), true
}

// absences returns the reasons why the row has no frames, one per kind of stack. Operators that hand over stacks know the
// reason themselves.
func (s stackFields) absences(d datasource.Data) []stack.Absence {
	var kinds []stack.Absence
	for _, of := range []func(*stackField) bool{
		func(f *stackField) bool { return f.kernel != nil },
		func(f *stackField) bool { return f.user != nil },
		func(f *stackField) bool { return f.id.acc == nil },
	} {
		why, there := stack.NotCollected, false
		for i := range s {
			if !of(&s[i]) {
				continue
			}
			there = true
			if w := s[i].absence(d); w != stack.NotCollected { // another form may have the stack
				why = w
			}
		}
		if there {
			kinds = append(kinds, why)
		}
	}
	return kinds
}

func (f *stackField) absence(d datasource.Data) stack.Absence {
	if f.id.acc == nil {
		return stack.NoText
	}
	id, ok := f.stackID(d)
	return stack.WhyAbsent(id, ok && (id != 0 || !f.byID))
}
