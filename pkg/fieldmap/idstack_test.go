package fieldmap

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// idMembers returns the members of a gadget whose rows hold stack IDs.
func idMembers() []*member {
	members := []*member{
		{name: "kern_stack_id", kind: api.Kind_Uint32, size: 4, tags: []string{kernelIDTag}, parent: -1},
		{name: "samples", kind: api.Kind_Uint64, size: 8, parent: -1},
		{name: "user_stack_id", kind: api.Kind_Bytes, size: 60, tags: []string{userIDTag}, parent: -1},
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

const idMetadata = `
annotations:
  profiles.value-field: samples
`

// idGadget creates a gadget with both forms of stacks, like this project's gadgets.
func idGadget(t testing.TB, metadata string) *source {
	t.Helper()
	members := idMembers()
	members = append(members, &member{name: "kern_stack_raw", kind: api.Kind_Uint32, size: 4, tags: []string{kernelStackTag}, parent: -1})
	members = append(members, processMembers(len(members))...)
	members = append(members, userStackMembers("user_stack_raw", len(members))...)
	return newSource(t, "samples", metadata, members...).enrich().formatUserStack("user_stack_raw").text("kern_stack")
}

// TestPresent checks that neither columns nor JSON show the fields of stack IDs.
func TestPresent(t *testing.T) {
	members := append(idMembers(), &member{name: "user_stack_key", kind: api.Kind_Uint64, size: 8, tags: []string{stackKeyTag}, parent: -1})
	process := &member{name: "proc", kind: api.Kind_Bytes, size: 28, tags: []string{processTag}, parent: -1}
	members = append(members, process, &member{name: "comm", kind: api.Kind_String, size: 16, parent: len(members)},
		&member{name: "pid", kind: api.Kind_Uint32, size: 4, parent: len(members)},
		&member{name: "cgroup_id", kind: api.Kind_Uint64, size: 8, tags: []string{cgroupTag}, parent: len(members)})
	src := newSource(t, "samples", idMetadata, append(members, userStackMembers("user_stack_raw", len(members))...)...).formatUserStack("user_stack_raw")
	symbols := src.GetField("user_stack_raw.symbols")
	symbols.SetHidden(true, false)
	require.True(t, HasIDs(src))
	Present(src)

	hidden := map[string]bool{}
	for _, f := range src.Fields() {
		ours := strings.HasPrefix(f.FullName, "kern_stack_id") || strings.HasPrefix(f.FullName, "user_stack_id") || f.FullName == "user_stack_key" || f.FullName == "proc.cgroup_id"
		hidden[f.FullName] = datasource.FieldFlagHidden.In(f.Flags)
		require.Equal(t, ours, f.Annotations["json.skip"] == "true", f.FullName)
		require.False(t, ours && !hidden[f.FullName], f.FullName)
	}
	require.Subset(t, hidden, map[string]bool{"proc": true, "proc.comm": false, "proc.pid": false, "proc.cgroup_id": true, "samples": false, "user_stack_raw.symbols": false})
	require.False(t, HasIDs(newSource(t, "samples", idMetadata, &member{name: "samples", kind: api.Kind_Uint64, size: 8, parent: -1})))
}

func idRow() map[string]any {
	return map[string]any{
		"kern_stack_raw":               uint32(0xfffffff2), // -EFAULT
		"kern_stack_id":                uint32(17),
		"samples":                      uint64(1),
		"proc.comm":                    "cart-server",
		"user_stack_id.inode":          uint64(99),
		"user_stack_id.major":          uint32(8),
		"user_stack_id.minor":          uint32(1),
		"user_stack_id.mtime_sec":      uint64(1_700_000_000),
		"user_stack_id.mtime_nsec":     uint32(5),
		"user_stack_id.base_addr_hash": uint32(6),
		"user_stack_id.stack_id":       uint32(18),
		"user_stack_id.tgid_level0":    uint32(4711),
		"user_stack_id.pid_level0":     uint32(4712),
		"user_stack_id.pidns_level0":   uint32(1),
		"user_stack_id.pid_level1":     uint32(7),
		"user_stack_id.pidns_level1":   uint32(2),
		"user_stack_id.boot_timestamp": uint64(123),
	}
}

// process is the process that idRow describes.
var process = procmap.Process{PID: 4711, ExeInode: 99, ExeModified: 1_700_000_000e9 + 5, Space: 6}

// functions is a Namer for a single process.
type functions struct {
	pending bool
	n       int
}

func (f *functions) Resolve(dst []names.Frame, p procmap.Process, seen uint64, addrs []uint64) ([]names.Frame, bool) {
	f.n++
	for _, addr := range addrs {
		var frame names.Frame
		name, ok := map[uint64]string{0x401000: "main.work", 0x402000: "main.main"}[addr]
		switch {
		case p != process || seen != 123:
			frame.State = names.Gone
		case f.pending:
			frame.State = names.Pending
		case !ok:
			frame.State = names.NotCode
		default:
			frame.Symbol.Name = name
		}
		dst = append(dst, frame)
	}
	return dst, f.pending
}

func mapSpecs(kind ebpf.MapType, valueSize uint32) func(string) *ebpf.MapSpec {
	return func(name string) *ebpf.MapSpec {
		if name != "ig_kstack" && name != "ig_ustack" {
			return nil
		}
		return &ebpf.MapSpec{Name: name, Type: kind, KeySize: 4, ValueSize: valueSize}
	}
}

// stackMap creates a stack map with one stack.
func stackMap(t *testing.T, id uint32, addrs ...uint64) func() *ebpf.Map {
	t.Helper()
	m := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 16})
	require.NoError(t, m.Put(id, append(addrs, make([]uint64, 127-len(addrs))...)))
	return func() *ebpf.Map { return m }
}

func idOptions(t *testing.T, f *functions) Options {
	t.Helper()
	o := testOptions()
	o.Exporter.KernelAddresses, o.Exporter.RawAddresses = "raw", true
	o.MapSpec = mapSpecs(ebpf.LRUHash, 1016)
	o.KernelMap = stackMap(t, 17, 0xffffffff81000010)
	o.UserMap = stackMap(t, 18, 0x401000, 0x402000)
	o.Names = f
	return o
}

func TestIDStacks(t *testing.T) {
	kernel := profile.Frame{Address: 0xffffffff81000010, Type: profile.FrameKernel}
	work := profile.Frame{Name: "main.work", Address: 0x401000, Type: profile.FrameNative}
	main := profile.Frame{Name: "main.main", Address: 0x402000, Type: profile.FrameNative}
	for _, tc := range []struct {
		name   string
		change map[string]any
		fate   profile.Fate
		frames []profile.Frame
	}{
		{name: "both", fate: profile.Incomplete, frames: []profile.Frame{kernel, work, main}},
		{name: "in user mode", change: map[string]any{"kern_stack_id": uint32(0xfffffff2)}, fate: profile.Incomplete, frames: []profile.Frame{work, main}},
		{name: "user stacks not collected", change: map[string]any{"user_stack_id.inode": nil, "user_stack_id.stack_id": nil}, frames: []profile.Frame{kernel}},
		{name: "the kernel's map was full", change: map[string]any{"kern_stack_id": uint32(0xfffffff9)}, fate: profile.Lost, frames: []profile.Frame{work, main}},
		{name: "gone from the map", change: map[string]any{"user_stack_id.stack_id": uint32(3)}, fate: profile.Lost, frames: []profile.Frame{kernel, {Name: rootLost}}},
		{
			name: "a row with texts",
			change: map[string]any{
				"kern_stack_id": nil, "user_stack_id.inode": nil, "user_stack_id.stack_id": nil,
				"kern_stack_raw": uint32(17), "kern_stack": "do_syscall_64; ",
				"user_stack_raw.inode": uint64(99), "user_stack_raw.stack_id": uint32(18), "user_stack_raw.symbols": "main.other; ",
			},
			fate: profile.Incomplete,
			frames: []profile.Frame{
				{Name: "do_syscall_64", Address: 0xffffffff81000010, Type: profile.FrameKernel},
				{Name: "main.other", Type: profile.FrameNative},
			},
		},
		{name: "neither", change: map[string]any{"kern_stack_id": nil, "user_stack_id.inode": nil}, fate: profile.NoStack, frames: []profile.Frame{{Name: "[no stack]"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := idGadget(t, idMetadata)
			p := compile(t, s, idOptions(t, &functions{}))
			row := idRow()
			for k, v := range tc.change {
				if v == nil {
					delete(row, k)
					continue
				}
				row[k] = v
			}
			sm := p.Sample(s.row(row))
			require.Equal(t, tc.fate, sm.Fate)
			require.Equal(t, tc.frames, append([]profile.Frame(nil), sm.Stack...))
			gone := tc.name == "gone from the map"
			require.Equal(t, gone, sm.Later == profile.AskAgain, "it may be there again")
			require.Zero(t, p.Stats().Unnamed)
		})
	}
}

// TestPendingStack checks a stack whose names become known only at the end of the interval.
func TestPendingStack(t *testing.T) {
	f := &functions{pending: true}
	s := idGadget(t, idMetadata)
	o := idOptions(t, f)
	o.Exporter.RawAddresses = false
	p := compile(t, s, o)
	sm := p.Sample(s.row(idRow()))
	require.Equal(t, profile.Whole, sm.Fate, "so far")
	require.NotNil(t, sm.Later)
	require.Equal(t, []int{1, 3}, []int{sm.LaterFrom, sm.LaterTo})
	unknown := profile.Frame{Name: stack.Unknown, Type: profile.FrameNative}
	require.Equal(t, []profile.Frame{unknown, unknown}, sm.Stack[1:])
	require.Positive(t, sm.Later.Size())
	frames, _, all := sm.Later.Frames(nil, false)
	require.False(t, all)
	require.Equal(t, []profile.Frame{unknown, unknown}, frames)
	require.Zero(t, p.Stats().UserFrames)
	f.pending = false
	frames, fate, all := sm.Later.Frames(nil, true)
	require.Equal(t, profile.Incomplete, fate, "main.main is called by another")
	require.True(t, all)
	require.Equal(t, []profile.Frame{{Name: "main.work", Type: profile.FrameNative}, {Name: "main.main", Type: profile.FrameNative}}, frames)
	require.Equal(t, [names.NumStates]uint64{names.Named: 2}, p.Stats().UserFrames)
}

// TestStackLedAstray checks stacks that reach the recording limit. One continues in code. The others have left code and are
// incomplete.
func TestStackLedAstray(t *testing.T) {
	deep := slices.Repeat([]uint64{0x401000, 0x402000}, 64)[:127]
	astray := slices.Concat(deep[:2], slices.Repeat([]uint64{0x7f0000001000}, 125)) // nothing is mapped there
	nowhere := slices.Concat(deep[:2], slices.Repeat([]uint64{0x20}, 125))          // nothing can be mapped there
	for _, tc := range []struct {
		name  string
		addrs []uint64
		depth int
		root  string
		fate  profile.Fate
	}{
		{"goes on", deep, 128, rootCutOff, profile.Truncated},
		{"led astray", astray, 3, rootIncomplete, profile.Incomplete},
		{"led to no address", nowhere, 3, rootIncomplete, profile.Incomplete},
	} {
		for _, pending := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, pending %v", tc.name, pending), func(t *testing.T) {
				f := &functions{pending: pending}
				s, o := idGadget(t, idMetadata), idOptions(t, f)
				o.Exporter.RawAddresses, o.Exporter.MarkIncomplete = false, true
				o.UserMap = stackMap(t, 18, tc.addrs...)
				p := compile(t, s, o)
				row := idRow()
				row["kern_stack_id"] = uint32(0xfffffff2)
				sm := p.Sample(s.row(row))
				frames, fate := sm.Stack, sm.Fate
				if pending {
					require.NotNil(t, sm.Later)
					require.Equal(t, len(sm.Stack), sm.LaterTo, "what is at the root is not known yet")
					f.pending = false
					frames, fate, _ = sm.Later.Frames(nil, true)
				}
				require.Len(t, frames, tc.depth)
				require.Equal(t, tc.root, frames[tc.depth-1].Name)
				require.Equal(t, tc.fate, fate)
			})
		}
	}
}

func TestIDStacksWithoutANamer(t *testing.T) {
	s := idGadget(t, idMetadata)
	o := idOptions(t, nil)
	o.Names = nil
	o.Exporter.RawAddresses = false
	p := compile(t, s, o)
	sm := p.Sample(s.row(idRow()))
	require.Equal(t, profile.Whole, sm.Fate, "a frame without a name can be an entry point")
	require.Equal(t, profile.Frame{Name: stack.Unknown, Type: profile.FrameNative}, sm.Stack[1])
	require.Nil(t, sm.Later)
	require.Equal(t, [names.NumStates]uint64{names.Gone: 2}, p.Stats().UserFrames)
}

// TestIDStackThatComesBack checks a stack that is evicted from the map and then recorded again.
func TestIDStackThatComesBack(t *testing.T) {
	s := idGadget(t, idMetadata)
	o := idOptions(t, &functions{})
	p := compile(t, s, o)
	m := o.UserMap()
	var addrs [127]uint64
	require.NoError(t, m.Lookup(uint32(18), &addrs))
	require.NoError(t, m.Delete(uint32(18)))
	d := s.row(idRow())
	sm := p.Sample(d)
	require.Equal(t, profile.Lost, sm.Fate)
	require.Equal(t, profile.AskAgain, sm.Later)
	require.NoError(t, m.Put(uint32(18), addrs))
	sm = p.Sample(d)
	require.Equal(t, profile.Incomplete, sm.Fate, "main.main is called by another")
	require.NotEqual(t, profile.AskAgain, sm.Later)
	require.Equal(t, "main.work", sm.Stack[1].Name)
}

// TestRowsDoNotMix checks that a row's stack has no parts of the row before.
func TestRowsDoNotMix(t *testing.T) {
	s := idGadget(t, idMetadata)
	o := idOptions(t, &functions{})
	require.NoError(t, o.UserMap().Put(uint32(19), append([]uint64{0x402000}, make([]uint64, 126)...)))
	p := compile(t, s, o)
	for _, id := range []uint32{18, 19, 18} {
		row := idRow()
		row["kern_stack_id"], row["user_stack_id.stack_id"] = uint32(0xfffffff2), id
		sm := p.Sample(s.row(row))
		require.Equal(t, map[uint32][]string{18: {"main.work", "main.main"}, 19: {"main.main"}}[id], frameNames(sm))
	}
}

// TestIDStackOfTheKernel checks that a function of the running kernel gets its name.
func TestIDStackOfTheKernel(t *testing.T) {
	symbols, err := stack.LoadKernelSymbols()
	if err != nil {
		t.Skipf("the kernel's symbols: %v", err)
	}
	s := idGadget(t, idMetadata)
	o := idOptions(t, &functions{})
	o.KernelSymbols = symbols
	o.KernelMap = stackMap(t, 17, symbols.Start)
	sm := compile(t, s, o).Sample(s.row(idRow()))
	require.NotEmpty(t, sm.Stack[0].Name)
	require.NotEqual(t, stack.Unknown, sm.Stack[0].Name)
	require.Equal(t, profile.FrameKernel, sm.Stack[0].Type)
}

func TestIDStackKeys(t *testing.T) {
	s := idGadget(t, idMetadata)
	p := compile(t, s, idOptions(t, &functions{}))
	_, base := p.Keys(s.row(idRow()))
	for name, same := range map[string]bool{
		"kern_stack_id": false, "user_stack_id.stack_id": false, "user_stack_id.base_addr_hash": false, "user_stack_id.inode": false,
		"user_stack_id.boot_timestamp": true, "user_stack_id.pid_level0": true,
	} {
		row := idRow()
		switch v := row[name].(type) {
		case uint32:
			row[name] = v + 1
		case uint64:
			row[name] = v + 1
		}
		_, key := p.Keys(s.row(row))
		require.Equal(t, same, key == base, name)
	}
	d := s.row(idRow())
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Keys(d) }))
	kernel, user := p.StackIDs(d)
	require.EqualValues(t, -14, kernel, "maps with plain IDs need no keeping")
	require.EqualValues(t, -1, user)
}

func TestIDStackFields(t *testing.T) {
	without := func(name string) []*member {
		var members []*member
		for _, m := range idMembers() {
			if m.name != name {
				members = append(members, m)
			}
		}
		return members
	}
	ofKind := func(name string, kind api.Kind, size uint32) []*member {
		members := idMembers()
		for _, m := range members {
			if m.name == name {
				m.kind, m.size = kind, size
			}
		}
		return members
	}
	hash := mapSpecs(ebpf.LRUHash, 1016)
	for _, tc := range []struct {
		name    string
		members []*member
		specs   func(string) *ebpf.MapSpec
		stacks  string
		err     string
	}{
		{name: "by type", members: idMembers(), specs: mapSpecs(ebpf.Hash, 1016)},
		{name: "by name", members: idMembers(), specs: hash, stacks: "user_stack_id"},
		{name: "by a member", members: idMembers(), specs: hash, stacks: "user_stack_id.stack_id,kern_stack_id"},
		{name: "a map that gives IDs anew", members: idMembers(), specs: mapSpecs(ebpf.StackTrace, 1016), err: `map ig_kstack is of type StackTrace`},
		{name: "a map of something else", members: idMembers(), specs: mapSpecs(ebpf.Hash, 12), err: `values of 12 bytes`},
		{name: "no map", members: idMembers(), err: `the stack "kern_stack_id" needs a map that the gadget does not have: ig_kstack`},
		{name: "no such map", members: idMembers(), specs: func(string) *ebpf.MapSpec { return nil }, err: `does not have: ig_kstack`},
		{name: "a member is missing", members: without("base_addr_hash"), specs: hash, err: `no member "base_addr_hash"`},
		{name: "a kernel stack that is no ID", members: ofKind("kern_stack_id", api.Kind_Uint64, 8), specs: hash, err: `"kern_stack_id" is not a 32-bit number`},
		{name: "a user stack without an ID", members: ofKind("stack_id", api.Kind_Uint64, 8), specs: hash, err: `no member "stack_id"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			metadata := idMetadata
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
			if tc.stacks == "user_stack_id" {
				want = 1
			}
			require.Len(t, p.stacks, want)
		})
	}
}

// TestIDStacksBesideText checks that selecting a kind of stack selects both its forms.
func TestIDStacksBesideText(t *testing.T) {
	for _, tc := range []struct {
		stacks string
		want   []string
	}{
		{"", []string{"kern_stack", "user_stack_raw", "kern_stack_id", "user_stack_id"}},
		{"kern_stack,user_stack_raw.symbols", []string{"kern_stack", "user_stack_raw", "kern_stack_id", "user_stack_id"}},
		{"user_stack_raw.symbols", []string{"user_stack_raw", "user_stack_id"}},
		{"kern_stack", []string{"kern_stack", "kern_stack_id"}},
		{"user_stack_id", []string{"user_stack_id"}},
		{"proc.comm", []string{"proc.comm"}},
	} {
		t.Run(tc.stacks, func(t *testing.T) {
			metadata := idMetadata
			if tc.stacks != "" {
				metadata += "  profiles.stack-fields: " + tc.stacks + "\n"
			}
			p := compile(t, idGadget(t, metadata), idOptions(t, &functions{}))
			var got []string
			for i := range p.stacks {
				got = append(got, p.stacks[i].name)
			}
			require.Equal(t, tc.want, got)
		})
	}
}

func TestSeveralIDStacks(t *testing.T) {
	o, warnings := recorded()
	members := append(idMembers(), &member{name: "freed_at", kind: api.Kind_Uint32, size: 4, tags: []string{kernelIDTag}, parent: -1})
	o.MapSpec = mapSpecs(ebpf.LRUHash, 1016)
	p := compile(t, newSource(t, "samples", idMetadata, members...), o)
	require.Len(t, p.stacks, 2)
	require.Len(t, warnings(), 1)
	require.Contains(t, warnings()[0], "exporting the stack kern_stack_id instead of freed_at")
}
