package fieldmap

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// HidePlainStacks keeps the stacks of plain IDs out of what Inspektor Gadget prints, as it does itself
// with those of its own types.
func HidePlainStacks(ds datasource.DataSource) {
	for _, acc := range ds.GetFieldsWithTag(plainKernelTag, plainUserTag) {
		acc.SetHidden(true, true)
	}
}

// taskReader reads what a symbolizer has to know of a process from a profiles_user_stack, whose members
// are those of a gadget_user_stack.
type taskReader struct {
	comm, tgid                               reader
	pid0, pidns0, pid1, pidns1               reader
	major, minor, inode, mtimeSec, mtimeNsec reader
	space, seen                              reader

	// unnamed belongs to the Plan, whose Stats may be asked for while rows are read.
	unnamed *unnamed
}

// unnamed counts stacks whose functions could not be named.
type unnamed struct {
	mu     sync.Mutex
	n      uint64
	reason error
}

func (u *unnamed) add(reason error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n++
	u.reason = reason
}

func (u *unnamed) get() (uint64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n, u.reason
}

func (r *taskReader) read(d datasource.Data) symbolizer.Task {
	t := symbolizer.Task{
		Name:       r.comm.text(d),
		Tgid:       uint32(r.tgid.number(d)),
		PidNumbers: []symbolizer.PidNumbers{{Pid: uint32(r.pid0.number(d)), PidNsId: uint32(r.pidns0.number(d))}},
		Exe: symbolizer.SymbolTableKey{
			Major:     uint32(r.major.number(d)),
			Minor:     uint32(r.minor.number(d)),
			Ino:       r.inode.number(d),
			MtimeSec:  int64(r.mtimeSec.number(d)),
			MtimeNsec: uint32(r.mtimeNsec.number(d)),
		},
		BaseAddrHash:       uint32(r.space.number(d)),
		EventBootTimestamp: r.seen.number(d),
	}
	if pid, ns := uint32(r.pid1.number(d)), uint32(r.pidns1.number(d)); pid != 0 && ns != 0 {
		t.PidNumbers = append(t.PidNumbers, symbolizer.PidNumbers{Pid: pid, PidNsId: ns})
	}
	return t
}

// addPlain adds the stacks that come as plain IDs to the others, unless one of those is among them: a
// row has either, as its gadget was told. Of several of one kind it takes the first.
func (c *compiler) addPlain(names []string) []string {
	var plain []string
	for _, tag := range []string{plainKernelTag, plainUserTag} {
		for i, acc := range c.ds.GetFieldsWithTag(tag) {
			if datasource.FieldFlagUnreferenced.In(acc.Flags()) {
				continue
			}
			if slices.ContainsFunc(names, func(name string) bool {
				named := c.field(name)
				return named != nil && structOf(named, tag) != nil && structOf(named, tag).FullName() == acc.FullName()
			}) {
				return names
			}
			if i == 0 {
				plain = append(plain, acc.FullName())
			}
		}
	}
	return append(names, plain...)
}

func (c *compiler) plainKernelStack(acc datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: acc.FullName(), plain: true, id: newReader(c.ds, acc)}
	if acc.Type() != api.Kind_Uint32 && acc.Type() != api.Kind_Int32 {
		return f, fmt.Errorf("data source %q: the kernel stack %q is no 32-bit number: declare it as \"typedef __u32 profiles_kernel_stack\"", c.ds.Name(), acc.FullName())
	}
	if err := c.checkMap(acc, ebpftypes.KernelStackMapName); err != nil {
		return f, err
	}
	f.kernel = c.kernel(true)
	return f, nil
}

func (c *compiler) plainUserStack(raw datasource.FieldAccessor) (stackField, error) {
	f := stackField{name: raw.FullName(), plain: true, processes: c.o.Processes, virtual: c.o.Exporter.VirtualAddresses}
	t := &f.task
	for _, m := range []struct {
		name string
		dst  *reader
	}{
		{"stack_id", &f.id},
		{"tgid_level0", &t.tgid},
		{"pid_level0", &t.pid0},
		{"pidns_level0", &t.pidns0},
		{"pid_level1", &t.pid1},
		{"pidns_level1", &t.pidns1},
		{"major", &t.major},
		{"minor", &t.minor},
		{"inode", &t.inode},
		{"mtime_sec", &t.mtimeSec},
		{"mtime_nsec", &t.mtimeNsec},
		{"base_addr_hash", &t.space},
		{"boot_timestamp", &t.seen},
	} {
		acc := c.byName[raw.FullName()+"."+m.name]
		if acc == nil {
			return f, fmt.Errorf("data source %q: the user stack %q has no member %q: its members are those of struct gadget_user_stack", c.ds.Name(), raw.FullName(), m.name)
		}
		*m.dst = newReader(c.ds, acc)
	}
	f.pid, f.space, f.seen, f.inode = t.tgid, t.space, t.seen, t.inode
	if acc := c.byName["proc.comm"]; acc != nil {
		t.comm = newReader(c.ds, acc)
	}
	if err := c.checkMap(raw, ebpftypes.UserStackMapName); err != nil {
		return f, err
	}
	t.unnamed = &unnamed{}
	o := stack.UserOptions{Map: c.o.UserMap, BuildIDs: c.o.BuildIDMap}
	if c.o.Symbolizer != nil {
		var err error
		if o.Symbolizer, err = c.o.Symbolizer(); err != nil {
			o.Symbolizer = nil
			c.warnf("the functions of programs are exported as addresses: making a symbolizer: %v", err)
		}
	}
	f.user = stack.NewUser(o)
	return f, nil
}

// checkMap tells why IDs cannot be looked up in a map. What is known of a stack is kept under its ID, so
// the ID must not become that of another stack.
func (c *compiler) checkMap(acc datasource.FieldAccessor, name string) error {
	var spec *ebpf.MapSpec
	if c.o.MapSpec != nil {
		spec = c.o.MapSpec(name)
	}
	switch {
	case spec == nil:
		return fmt.Errorf("data source %q: the stack %q is in no map: the gadget has none called %s", c.ds.Name(), acc.FullName(), name)
	case spec.Type != ebpf.Hash && spec.Type != ebpf.LRUHash:
		return fmt.Errorf("data source %q: the map %s is of type %s, in which the ID of %q can become that of another stack: use an LRU hash map with hashes of stacks as IDs",
			c.ds.Name(), name, spec.Type, acc.FullName())
	}
	return nil
}

// appendPlain appends the frames of a stack that is an ID. With pending, its functions may have names
// later.
func (f *stackField) appendPlain(dst []profile.Frame, d datasource.Data) (out []profile.Frame, o stack.Outcome, pending bool) {
	id, ok := f.stackID(d)
	if !ok {
		return dst, stack.Empty, false
	}
	if f.kernel != nil {
		out, o = f.kernel.AppendID(dst, id)
		return out, o, false
	}
	out, o, err := f.user.AppendID(dst, id, f.task.read(d))
	if err != nil {
		f.task.unnamed.add(err)
	}
	return out, o, err != nil
}
