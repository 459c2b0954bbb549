package fieldmap

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// plainMembers are those of a gadget whose rows carry the IDs of stacks.
func plainMembers() []*member {
	members := []*member{
		{name: "kern_stack_plain", kind: api.Kind_Uint32, size: 4, tags: []string{plainKernelTag}, parent: -1},
		{name: "samples", kind: api.Kind_Uint64, size: 8, parent: -1},
		{name: "user_stack_plain", kind: api.Kind_Bytes, size: 60, tags: []string{plainUserTag}, parent: -1},
	}
	u32 := func(name string) *member {
		return &member{name: name, kind: api.Kind_Uint32, size: 4, parent: 2}
	}
	u64 := func(name string) *member {
		return &member{name: name, kind: api.Kind_Uint64, size: 8, parent: 2}
	}
	return append(members, u32("major"), u32("minor"), u64("inode"), u64("mtime_sec"), u32("mtime_nsec"),
		u32("base_addr_hash"), u32("stack_id"), u32("tgid_level0"), u32("pid_level0"), u32("pidns_level0"),
		u32("pid_level1"), u32("pidns_level1"), u64("boot_timestamp"))
}

const plainMetadata = `
annotations:
  profiles.value-field: samples
`

// plainGadget is a gadget with both forms of stacks, as those of this project are.
func plainGadget(t testing.TB, metadata string) *source {
	t.Helper()
	members := plainMembers()
	members = append(members, &member{name: "kern_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1})
	members = append(members, processMembers(len(members))...)
	members = append(members, userStackMembers("user_stack_raw", len(members))...)
	return newSource(t, "samples", metadata, members...).enrich().formatUserStack("user_stack_raw").text("kern_stack")
}

func plainRow() map[string]any {
	return map[string]any{
		"kern_stack_raw":                  uint32(0xfffffff2), // -EFAULT
		"kern_stack_plain":                uint32(17),
		"samples":                         uint64(1),
		"proc.comm":                       "cart-server",
		"user_stack_plain.inode":          uint64(99),
		"user_stack_plain.major":          uint32(8),
		"user_stack_plain.minor":          uint32(1),
		"user_stack_plain.mtime_sec":      uint64(1_700_000_000),
		"user_stack_plain.mtime_nsec":     uint32(5),
		"user_stack_plain.base_addr_hash": uint32(6),
		"user_stack_plain.stack_id":       uint32(18),
		"user_stack_plain.tgid_level0":    uint32(4711),
		"user_stack_plain.pid_level0":     uint32(4712),
		"user_stack_plain.pidns_level0":   uint32(1),
		"user_stack_plain.pid_level1":     uint32(7),
		"user_stack_plain.pidns_level1":   uint32(2),
		"user_stack_plain.boot_timestamp": uint64(123),
	}
}

// task is what plainRow says of its process.
var task = symbolizer.Task{
	Name: "cart-server", Tgid: 4711, BaseAddrHash: 6, EventBootTimestamp: 123,
	PidNumbers: []symbolizer.PidNumbers{{Pid: 4712, PidNsId: 1}, {Pid: 7, PidNsId: 2}},
	Exe:        symbolizer.SymbolTableKey{Major: 8, Minor: 1, Ino: 99, MtimeSec: 1_700_000_000, MtimeNsec: 5},
}

// functions is a Symbolizer that knows one process.
type functions struct{ err error }

func (f *functions) Resolve(got symbolizer.Task, queries []symbolizer.StackItemQuery) ([]symbolizer.StackItemResponse, error) {
	if f.err != nil {
		return nil, f.err
	}
	if got.BaseAddrHash != task.BaseAddrHash || got.Exe != task.Exe || got.Tgid != task.Tgid || len(got.PidNumbers) != 2 || got.Name != task.Name {
		return nil, errors.New("not the process of the row")
	}
	return []symbolizer.StackItemResponse{{Found: true, Symbol: "main.work"}, {Found: true, Symbol: "main.main"}}[:len(queries)], nil
}

func mapSpecs(kind ebpf.MapType) func(string) *ebpf.MapSpec {
	return func(name string) *ebpf.MapSpec {
		if name != "ig_kstack" && name != "ig_ustack" {
			return nil
		}
		return &ebpf.MapSpec{Name: name, Type: kind}
	}
}

// stackMap makes a stack map with one stack.
func stackMap(t *testing.T, id uint32, addrs ...uint64) func() *ebpf.Map {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("eBPF maps need root")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Skipf("eBPF maps need locked memory: %v", err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 16})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, m.Put(id, append(addrs, make([]uint64, 127-len(addrs))...)))
	return func() *ebpf.Map { return m }
}

func plainOptions(t *testing.T, f *functions) Options {
	t.Helper()
	o := testOptions()
	o.Exporter.KernelAddresses = "raw"
	o.MapSpec = mapSpecs(ebpf.LRUHash)
	o.KernelMap = stackMap(t, 17, 0xffffffff81000010)
	o.UserMap = stackMap(t, 18, 0x401000, 0x402000)
	o.Symbolizer = func() (stack.Symbolizer, error) { return f, nil }
	return o
}

func TestPlainStacks(t *testing.T) {
	kernel := profile.Frame{Address: 0xffffffff81000010, Type: profile.FrameKernel}
	work := profile.Frame{Name: "main.work", Address: 0x401000, Type: profile.FrameNative}
	main := profile.Frame{Name: "main.main", Address: 0x402000, Type: profile.FrameNative}
	for _, tc := range []struct {
		name    string
		change  map[string]any
		outcome stack.Outcome
		frames  []profile.Frame
	}{
		{name: "both", frames: []profile.Frame{kernel, work, main}},
		{name: "in user mode", change: map[string]any{"kern_stack_plain": uint32(0xfffffff2)}, frames: []profile.Frame{work, main}},
		{name: "user stacks not collected", change: map[string]any{"user_stack_plain.inode": nil, "user_stack_plain.stack_id": nil}, frames: []profile.Frame{kernel}},
		{name: "the kernel's map was full", change: map[string]any{"kern_stack_plain": uint32(0xfffffff9)}, outcome: stack.Lost, frames: []profile.Frame{work, main}},
		{name: "gone from the map", change: map[string]any{"user_stack_plain.stack_id": uint32(3)}, outcome: stack.Lost, frames: []profile.Frame{kernel}},
		{
			name: "a row with texts",
			change: map[string]any{
				"kern_stack_plain": nil, "user_stack_plain.inode": nil, "user_stack_plain.stack_id": nil,
				"kern_stack_raw": uint32(17), "kern_stack": "do_syscall_64; ",
				"user_stack_raw.inode": uint64(99), "user_stack_raw.stack_id": uint32(18), "user_stack_raw.symbols": "main.other; ",
			},
			frames: []profile.Frame{
				{Name: "do_syscall_64", Address: 0xffffffff81000010, Type: profile.FrameKernel},
				{Name: "main.other", Type: profile.FrameNative},
			},
		},
		{name: "neither", change: map[string]any{"kern_stack_plain": nil, "user_stack_plain.inode": nil}, outcome: stack.Empty},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := plainGadget(t, plainMetadata)
			p := compile(t, s, plainOptions(t, &functions{}))
			row := plainRow()
			for k, v := range tc.change {
				if v == nil {
					delete(row, k)
					continue
				}
				row[k] = v
			}
			sm, outcome := p.Sample(s.row(row))
			require.Equal(t, tc.outcome, outcome)
			require.Equal(t, tc.frames, append([]profile.Frame(nil), sm.Stack...))
			require.False(t, sm.Provisional)
			require.Zero(t, p.Stats().UnnamedStacks)
		})
	}
}

// TestPlainStackOfAnEndedProcess has a stack that cannot be named now and perhaps later.
func TestPlainStackOfAnEndedProcess(t *testing.T) {
	gone := errors.New("no such process")
	f := &functions{err: gone}
	s := plainGadget(t, plainMetadata)
	p := compile(t, s, plainOptions(t, f))
	d := s.row(plainRow())
	sm, outcome := p.Sample(d)
	require.Equal(t, stack.OK, outcome)
	require.True(t, sm.Provisional)
	require.Equal(t, []profile.Frame{{Address: 0x401000, Type: profile.FrameNative}, {Address: 0x402000, Type: profile.FrameNative}}, sm.Stack[1:])
	require.Equal(t, Stats{UnnamedStacks: 1, UnnamedReason: gone}, p.Stats())
	f.err = nil
	sm, _ = p.Sample(d)
	require.False(t, sm.Provisional)
	require.Equal(t, "main.work", sm.Stack[1].Name)
}

func TestPlainStacksWithoutASymbolizer(t *testing.T) {
	for name, symbolizer := range map[string]func() (stack.Symbolizer, error){
		"none":      nil,
		"none made": func() (stack.Symbolizer, error) { return nil, errors.New("no /proc") },
	} {
		t.Run(name, func(t *testing.T) {
			log, warnings := recorder()
			s := plainGadget(t, plainMetadata)
			o := plainOptions(t, nil)
			o.Symbolizer, o.Logger = symbolizer, log
			sm, outcome := compile(t, s, o).Sample(s.row(plainRow()))
			require.Equal(t, stack.OK, outcome)
			require.Equal(t, profile.Frame{Address: 0x401000, Type: profile.FrameNative}, sm.Stack[1])
			require.False(t, sm.Provisional)
			if symbolizer != nil {
				require.Len(t, warnings(), 1)
				require.Contains(t, warnings()[0], "no /proc")
			}
		})
	}
}

func TestPlainStackKeys(t *testing.T) {
	s := plainGadget(t, plainMetadata)
	p := compile(t, s, plainOptions(t, &functions{}))
	_, base := p.Keys(s.row(plainRow()))
	for name, same := range map[string]bool{
		"kern_stack_plain": false, "user_stack_plain.stack_id": false, "user_stack_plain.base_addr_hash": false, "user_stack_plain.inode": false,
		"user_stack_plain.boot_timestamp": true, "user_stack_plain.pid_level0": true,
	} {
		row := plainRow()
		switch v := row[name].(type) {
		case uint32:
			row[name] = v + 1
		case uint64:
			row[name] = v + 1
		}
		_, key := p.Keys(s.row(row))
		require.Equal(t, same, key == base, name)
	}
	d := s.row(plainRow())
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Keys(d) }))
	kernel, user := p.StackIDs(d)
	require.EqualValues(t, -14, kernel, "maps with plain IDs need no keeping")
	require.EqualValues(t, -1, user)
}

func TestPlainStackFields(t *testing.T) {
	without := func(name string) []*member {
		var members []*member
		for _, m := range plainMembers() {
			if m.name != name {
				members = append(members, m)
			}
		}
		return members
	}
	wide := plainMembers()
	wide[0].kind, wide[0].size = api.Kind_Uint64, 8
	for _, tc := range []struct {
		name    string
		members []*member
		specs   func(string) *ebpf.MapSpec
		stacks  string
		err     string
	}{
		{name: "by type", members: plainMembers(), specs: mapSpecs(ebpf.Hash)},
		{name: "by name", members: plainMembers(), specs: mapSpecs(ebpf.LRUHash), stacks: "user_stack_plain"},
		{name: "by a member", members: plainMembers(), specs: mapSpecs(ebpf.LRUHash), stacks: "user_stack_plain.stack_id,kern_stack_plain"},
		{name: "a map that gives IDs anew", members: plainMembers(), specs: mapSpecs(ebpf.StackTrace), err: `map ig_kstack is of type StackTrace`},
		{name: "no map", members: plainMembers(), err: `the stack "kern_stack_plain" is in no map: the gadget has none called ig_kstack`},
		{name: "no such map", members: plainMembers(), specs: func(string) *ebpf.MapSpec { return nil }, err: `none called ig_kstack`},
		{name: "a member is missing", members: without("base_addr_hash"), specs: mapSpecs(ebpf.LRUHash), err: `no member "base_addr_hash"`},
		{name: "not an ID", members: wide, specs: mapSpecs(ebpf.LRUHash), err: `"kern_stack_plain" is no 32-bit number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			metadata := plainMetadata
			if tc.stacks != "" {
				metadata += "  profiles.stack-fields: " + tc.stacks + "\n"
			}
			o := testOptions()
			o.MapSpec = tc.specs
			p, err := Compile(newSource(t, "samples", metadata, tc.members...), o)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				require.ErrorContains(t, err, `data source "samples"`)
				return
			}
			require.NoError(t, err)
			want := 2
			if tc.stacks == "user_stack_plain" {
				want = 1
			}
			require.Len(t, p.stacks, want)
		})
	}
}

func TestHidePlainStacks(t *testing.T) {
	s := plainGadget(t, plainMetadata)
	HidePlainStacks(s)
	for name, hidden := range map[string]bool{"kern_stack_plain": true, "user_stack_plain": true, "user_stack_plain.inode": true, "samples": false} {
		require.Equal(t, hidden, datasource.FieldFlagHidden.In(s.GetField(name).Flags()), name)
	}
}
