package stack

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/kallsyms"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// The size of Inspektor Gadget's stack maps.
const (
	igStackDepth   = 127
	igStackEntries = 10000
)

// fastStackCmp is BPF_F_FAST_STACK_CMP, with which Inspektor Gadget takes stacks.
const fastStackCmp = 1 << 9

// needBPF skips a test where eBPF programs cannot be loaded, and says why.
func needBPF(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("eBPF programs need root")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Skipf("eBPF programs need locked memory: %s", err)
	}
}

func newMap(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(spec)
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrPermission) {
		t.Skipf("no map of type %s here: %s", spec.Type, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func newStackMap(t testing.TB, entries uint32) *ebpf.Map {
	t.Helper()
	return newMap(t, &ebpf.MapSpec{Name: "test_stacks", Type: ebpf.StackTrace, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: entries})
}

// recordStacks attaches a program to a raw tracepoint that stores the stack of each event of this
// process in stacks. It returns a map that holds at 0 the last error of bpf_get_stackid, 0 if there
// was none, and a function that detaches the program.
func recordStacks(t testing.TB, tracepoint string, stacks *ebpf.Map, flags int32) (lastError *ebpf.Map, detach func()) {
	t.Helper()
	lastError = newMap(t, &ebpf.MapSpec{Name: "test_errors", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:    "test_stackid",
		Type:    ebpf.RawTracepoint,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.FnGetCurrentPidTgid.Call(),
			asm.RSh.Imm(asm.R0, 32),
			asm.JNE.Imm(asm.R0, int32(os.Getpid()), "out"),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.LoadMapPtr(asm.R2, stacks.FD()),
			asm.Mov.Imm(asm.R3, flags),
			asm.FnGetStackid.Call(),
			asm.JSGE.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.StoreImm(asm.RFP, -16, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, lastError.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -16),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, prog.Close()) })
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: prog})
	require.NoError(t, err)
	closed := false
	detach = func() {
		if !closed {
			closed = true
			require.NoError(t, l.Close())
		}
	}
	t.Cleanup(detach)
	return lastError, detach
}

// keys returns the keys of a stack map.
func keys(t testing.TB, m *ebpf.Map) []uint32 {
	t.Helper()
	var all []uint32
	var key uint32
	err := m.NextKey(nil, &key)
	for ; err == nil; err = m.NextKey(&all[len(all)-1], &key) {
		all = append(all, key)
	}
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	return all
}

// formatStack makes the text of a stack as Inspektor Gadget does.
func formatStack(t testing.TB, m *ebpf.Map, id uint32, symbols *kallsyms.KAllSyms) (text []byte, addrs []uint64) {
	t.Helper()
	var stack [igStackDepth]uint64
	require.NoError(t, m.Lookup(id, &stack))
	for _, addr := range stack {
		if addr == 0 {
			break
		}
		addrs = append(addrs, addr)
		text = fmt.Appendf(text, "%s; ", symbols.LookupByInstructionPointer(addr))
	}
	return text, addrs
}

// runningKernel returns the symbols of this kernel, and skips a test where they are hidden.
func runningKernel(t testing.TB) *KernelSymbols {
	t.Helper()
	symbols, err := LoadKernelSymbols()
	if symbols.Start == 0 {
		t.Skipf("the kernel's addresses are hidden: %s", err)
	}
	require.NoError(t, err)
	return symbols
}

// recordedStacks returns a map with kernel stacks of this process, and the symbols for them.
func recordedStacks(t testing.TB) (*ebpf.Map, *kallsyms.KAllSyms) {
	t.Helper()
	needBPF(t)
	all, err := kallsyms.NewKAllSyms()
	require.NoError(t, err)
	m := newStackMap(t, igStackEntries)
	_, detach := recordStacks(t, "sched_switch", m, fastStackCmp)
	for range 20 {
		time.Sleep(time.Millisecond)
	}
	detach()
	require.NotEmpty(t, keys(t, m))
	return m, all
}

// TestKernelOnKernel turns the stacks that this kernel records into frames.
func TestKernelOnKernel(t *testing.T) {
	m, all := recordedStacks(t)
	symbols := runningKernel(t)
	mapOf := func() *ebpf.Map { return m }
	kernel := NewKernel(KernelOptions{Map: mapOf, Symbols: symbols})
	raw := NewKernel(KernelOptions{Map: mapOf, Symbols: symbols, RawAddresses: true, KeepTracing: true})

	for _, id := range keys(t, m) {
		text, addrs := formatStack(t, m, id, all)
		frames, outcome := kernel.Append(nil, text, int32(id), true)
		require.Equal(t, OK, outcome)
		require.NotEmpty(t, frames)
		require.Contains(t, frames[0].Name, "schedule", "the frames of the tracing are left out: %s", text)
		trimmed := len(addrs) - len(frames)
		require.Positive(t, trimmed, "%s", text)
		for i, f := range frames {
			require.Equal(t, profile.FrameKernel, f.Type)
			addr := addrs[trimmed+i]
			if addr < symbols.Start || addr >= symbols.End {
				continue // a module
			}
			require.Equal(t, addr-symbols.Start, f.Address)
			require.Equal(t, all.LookupByInstructionPointer(addr), f.Name)
			require.Equal(t, profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: symbols.BuildID, Symbolized: true}, f.Mapping)
		}

		frames, outcome = raw.Append(nil, text, int32(id), true)
		require.Equal(t, OK, outcome)
		require.Len(t, frames, len(addrs))
		for i, f := range frames {
			require.Equal(t, addrs[i], f.Address)
		}

		// The entry was replaced by a stack of another depth.
		frames, outcome = kernel.Append(nil, append(text, "one_more; "...), int32(id), true)
		require.Equal(t, OK, outcome)
		for _, f := range frames {
			require.Zero(t, f.Address, "%s", f.Name)
		}

		// The entry is gone.
		require.NoError(t, m.Delete(id))
		frames, outcome = kernel.Append(nil, text, int32(id), true)
		require.Equal(t, OK, outcome)
		require.Contains(t, frames[0].Name, "schedule")
		require.Zero(t, frames[0].Address)
		frames, outcome = kernel.Append(nil, nil, int32(id), true)
		require.Equal(t, Lost, outcome)
		require.Empty(t, frames)
	}
}

// TestKernelErrors has the kernel return each of the errors that Missing tells apart.
func TestKernelErrors(t *testing.T) {
	needBPF(t)
	record := func(entries uint32, flags int32, churn func()) map[int32]bool {
		lastError, detach := recordStacks(t, "sys_enter", newStackMap(t, entries), flags)
		defer detach()
		got := map[int32]bool{}
		for range 200 {
			churn()
			var id int64
			require.NoError(t, lastError.Lookup(uint32(0), &id))
			got[int32(id)] = true
		}
		return got
	}
	// A map with room for one user stack loses the others.
	const userStack = 1 << 8
	depth := 0
	got := record(1, userStack|fastStackCmp, func() { depth++; syscallAt(depth % 40) })
	require.Contains(t, got, -int32(unix.EEXIST))
	for id := range got {
		if id != 0 {
			require.Equal(t, Lost, Missing(id, true), "%s", unix.Errno(-id))
		}
	}

	// More frames are skipped than there are, as in user mode: there is no stack, and none is lost.
	got = record(1, 255, func() { syscallAt(1) })
	require.Contains(t, got, -int32(unix.EFAULT))
	require.Equal(t, Empty, Missing(-int32(unix.EFAULT), true))
}

// syscallAt makes a system call from some depth, so that its user stack differs from others.
//
//go:noinline
func syscallAt(depth int) {
	if depth > 0 {
		syscallAt(depth - 1)
		return
	}
	_ = unix.Getppid()
}

// TestKernelSyscalls has a system call traced, whose stack has nothing of its own but the entry.
func TestKernelSyscalls(t *testing.T) {
	needBPF(t)
	all, err := kallsyms.NewKAllSyms()
	require.NoError(t, err)
	symbols := runningKernel(t)
	m := newStackMap(t, igStackEntries)
	_, detach := recordStacks(t, "sys_enter", m, fastStackCmp)
	_ = unix.Getppid()
	detach()
	kernel := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: symbols})
	for _, id := range keys(t, m) {
		text, _ := formatStack(t, m, id, all)
		frames, outcome := kernel.Append(nil, text, int32(id), true)
		require.Equal(t, OK, outcome)
		for _, f := range frames {
			require.NotContains(t, f.Name, "trace", "%s", text)
			require.NotEqual(t, Unknown, f.Name, "%s", text)
		}
	}
}

// TestKernelReadsHashMaps is for gadgets that keep their stacks themselves.
func TestKernelReadsHashMaps(t *testing.T) {
	needBPF(t)
	const id = 1<<31 - 1
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		m := newMap(t, &ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
		stack := make([]uint64, igStackDepth)
		stack[0], stack[1] = testStart+0x10, testStart+0x20
		require.NoError(t, m.Put(uint32(id), stack))
		k := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: testSymbols()})
		frames, outcome := k.Append(nil, list("a", "b"), id, true)
		require.Equal(t, OK, outcome)
		require.Equal(t, []string{"a", "b"}, names(frames))
		require.EqualValues(t, 0x10, frames[0].Address)
		require.EqualValues(t, 0x20, frames[1].Address)
		frames, _ = k.Append(nil, list("a", "b"), id-1, true)
		require.Zero(t, frames[0].Address, "an ID that has no entry")
	}
}

func TestKernelIgnoresOtherMaps(t *testing.T) {
	needBPF(t)
	array := newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	for _, m := range []*ebpf.Map{nil, array} {
		k := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: testSymbols()})
		frames, outcome := k.Append(nil, list("a", "b"), 0, true)
		require.Equal(t, OK, outcome)
		require.Equal(t, []string{"a", "b"}, names(frames))
	}
}

// TestJanitor keeps what rows name and deletes what they do not.
func TestJanitor(t *testing.T) {
	needBPF(t)
	stacks := newStackMap(t, igStackEntries)
	buildIDs := newMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1024})
	_, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	for depth := range 60 {
		syscallAt(depth)
	}
	detach()
	ids := keys(t, stacks)
	require.Greater(t, len(ids), 20)
	for _, id := range ids {
		require.NoError(t, buildIDs.Put(id, uint64(1)))
	}

	j := NewJanitor(JanitorOptions{
		Stacks:   func() *ebpf.Map { return stacks },
		BuildIDs: func() *ebpf.Map { return buildIDs },
		Cold:     10 * time.Second,
	})
	start := time.Now()
	sweep := func(second int) int {
		t.Helper()
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		return deleted
	}
	require.Zero(t, sweep(0), "an entry that is met for the first time is given its time")
	require.Equal(t, len(ids), j.Entries())
	used := ids[:5]
	for second := 1; second < 10; second++ {
		for _, id := range used {
			j.Seen(int32(id))
		}
		require.Zero(t, sweep(second))
	}
	require.Equal(t, len(ids)-len(used), sweep(10), "what no row ever named goes")
	require.Equal(t, used, keys(t, stacks))
	require.Equal(t, len(used), j.Entries())
	for i, id := range ids {
		err := buildIDs.Lookup(id, new(uint64))
		if i < len(used) {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ebpf.ErrKeyNotExist, "build IDs go with their stack")
		}
	}
	require.Zero(t, sweep(17))
	require.Equal(t, len(used), sweep(18), "what rows name no more goes")
	require.Empty(t, keys(t, stacks))
	require.Zero(t, sweep(19))
	require.Zero(t, j.Entries())

	// What is back in the map is given its time again.
	_, detach = recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	syscallAt(3)
	detach()
	require.NotEmpty(t, keys(t, stacks))
	require.Zero(t, sweep(21))
	require.Zero(t, sweep(30))
	require.NotEmpty(t, keys(t, stacks))
	require.Positive(t, sweep(31))
	require.Empty(t, keys(t, stacks))
}

// TestJanitorMakesRoom shows what a Janitor is for: a map that is full takes new stacks again.
func TestJanitorMakesRoom(t *testing.T) {
	needBPF(t)
	const entries = 8
	stacks := newStackMap(t, entries)
	j := NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return stacks }, Cold: time.Second})
	lastError, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	for depth := range 200 {
		syscallAt(depth)
	}
	detach()
	var errno int64
	require.NoError(t, lastError.Lookup(uint32(0), &errno))
	require.Negative(t, errno, "the map has no room left")
	held := len(keys(t, stacks))
	now := time.Now()
	_, err := j.Sweep(now)
	require.NoError(t, err)
	deleted, err := j.Sweep(now.Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, held, deleted)

	_, detach = recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	syscallAt(500)
	detach()
	require.NotEmpty(t, keys(t, stacks), "there is room again")
}

// TestJanitorWalksInSteps has more entries than one Sweep looks at.
func TestJanitorWalksInSteps(t *testing.T) {
	needBPF(t)
	stacks := newStackMap(t, igStackEntries)
	_, detach := recordStacks(t, "sys_enter", stacks, 1<<8|fastStackCmp)
	for a := range 60 {
		for b := range 60 {
			deepSyscall(a, b)
		}
	}
	detach()
	held := len(keys(t, stacks))
	require.Greater(t, held, 2*sweepKeys)

	j := NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return stacks }, Cold: 20 * time.Second})
	start := time.Now()
	total := 0
	for second := range 20 {
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		require.Zero(t, deleted)
	}
	require.Equal(t, held, j.Entries())
	for second := 40; total < held; second++ {
		require.Less(t, second, 60)
		deleted, err := j.Sweep(start.Add(time.Duration(second) * time.Second))
		require.NoError(t, err)
		require.LessOrEqual(t, deleted, sweepKeys)
		total += deleted
	}
	require.Equal(t, held, total)
	require.Empty(t, keys(t, stacks))
}

// deepSyscall makes a system call with a user stack of its own for each a and b.
//
//go:noinline
func deepSyscall(a, b int) {
	if a > 0 {
		deepSyscall(a-1, b)
		return
	}
	syscallAt(b)
}

func TestJanitorWithoutMap(t *testing.T) {
	needBPF(t)
	var m *ebpf.Map
	j := NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return m }})
	now := time.Now()
	for i := range 3 {
		j.Seen(int32(i - 1))
		deleted, err := j.Sweep(now.Add(time.Duration(i) * time.Hour))
		require.NoError(t, err)
		require.Zero(t, deleted)
	}
	m = newStackMap(t, 5)
	_, err := j.Sweep(now)
	require.NoError(t, err)
	require.Len(t, j.seen, 8, "the kernel takes IDs up to the next power of two")
	for _, id := range []int32{-17, -1, 0, 7, 8, 1 << 30} {
		j.Seen(id)
	}
	m = newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	j = NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return m }})
	_, err = j.Sweep(now)
	require.NoError(t, err)
	require.Nil(t, j.stacks)
}

func TestJanitorOnClosedMap(t *testing.T) {
	needBPF(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.StackTrace, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
	require.NoError(t, err)
	j := NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return m }})
	_, err = j.Sweep(time.Now())
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = j.Sweep(time.Now())
	require.ErrorContains(t, err, "walking the stack map")
	frames, outcome := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }}).Append(nil, list("a"), 0, true)
	require.Equal(t, OK, outcome)
	require.Equal(t, []string{"a"}, names(frames))
}

// TestStackMapIDs pins what the Janitor's table relies on.
func TestStackMapIDs(t *testing.T) {
	needBPF(t)
	m := newStackMap(t, igStackEntries)
	n := uint32(1) << bits.Len32(igStackEntries-1)
	require.ErrorIs(t, m.Delete(n-1), ebpf.ErrKeyNotExist)
	err := m.Delete(n)
	require.Error(t, err)
	require.NotErrorIs(t, err, ebpf.ErrKeyNotExist, "an ID that cannot be")
}

func BenchmarkKernelLookup(b *testing.B) {
	m, all := recordedStacks(b)
	id := keys(b, m)[0]
	text, _ := formatStack(b, m, id, all)
	k := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: testSymbols()})
	var frames []profile.Frame
	b.ReportMetric(float64(strings.Count(string(text), "; ")), "frames")
	b.ReportAllocs()
	for b.Loop() {
		frames, _ = k.Append(frames[:0], text, int32(id), true)
	}
}

func BenchmarkSweep(b *testing.B) {
	needBPF(b)
	stacks := newStackMap(b, igStackEntries)
	_, detach := recordStacks(b, "sys_enter", stacks, 1<<8|fastStackCmp)
	for i := range 60 {
		for k := range 60 {
			deepSyscall(i, k)
		}
	}
	detach()
	j := NewJanitor(JanitorOptions{Stacks: func() *ebpf.Map { return stacks }, Cold: time.Hour})
	now := time.Now()
	for b.Loop() {
		_, err := j.Sweep(now)
		require.NoError(b, err)
	}
}

func BenchmarkSeen(b *testing.B) {
	j := &Janitor{seen: make([]uint32, 1<<14), tick: 1}
	id := int32(0)
	for b.Loop() {
		id = (id + 7919) & (1<<14 - 1)
		j.Seen(id)
	}
}

// TestModulesOnKernel looks functions of this kernel's modules up by their addresses.
func TestModulesOnKernel(t *testing.T) {
	symbols := runningKernel(t)
	k := NewKernel(KernelOptions{Symbols: symbols})
	if len(k.modules) == 0 {
		t.Skip("this kernel has no modules loaded")
	}
	require.True(t, k.knowsModules)
	text, err := os.ReadFile("/proc/kallsyms")
	require.NoError(t, err)
	all, err := kallsyms.NewKAllSymsFromReader(bytes.NewReader(text))
	require.NoError(t, err)
	// Several functions may have one address.
	namesAt := map[uint64][]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || !slices.Contains([]string{"t", "T", "w", "W"}, fields[1]) {
			continue
		}
		addr, ok := parseHex(fields[0])
		require.True(t, ok)
		if m := findModule(k.modules, addr); m != nil && fields[3] == "["+m.name+"]" {
			namesAt[addr] = append(namesAt[addr], fields[2])
		}
	}
	checked, corrected := 0, 0
	for addr, names := range namesAt {
		theirs := all.LookupByInstructionPointer(addr)
		var f profile.Frame
		k.frame(&f, theirs, addr, true, true)
		require.Contains(t, names, f.Name)
		if m := findModule(k.modules, addr); f.Mapping.GNUBuildID != "" {
			require.Equal(t, "["+m.name+"]", f.Mapping.File)
			require.Equal(t, addr-m.start, f.Address)
		}
		checked++
		if !slices.Contains(names, theirs) {
			corrected++
		}
	}
	require.NotZero(t, checked)
	t.Logf("%d functions of %d modules; Inspektor Gadget names %d of them wrongly", checked, len(k.modules), corrected)
}
