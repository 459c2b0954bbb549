package stack

import (
	"bytes"
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
	"github.com/inspektor-gadget/inspektor-gadget/pkg/kallsyms"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// These are the sizes of Inspektor Gadget's stack maps.
const (
	igStackDepth   = 127
	igStackEntries = 10000
)

// fastStackCmp is BPF_F_FAST_STACK_CMP, with which Inspektor Gadget records stacks.
const fastStackCmp = 1 << 9

func newStackMap(t testing.TB, entries uint32) *ebpf.Map {
	t.Helper()
	return igtest.Map(t, &ebpf.MapSpec{Name: "test_stacks", Type: ebpf.StackTrace, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: entries})
}

// recordStacks attaches a program to a raw tracepoint. The program stores the stack of each of this process's events in stacks.
// recordStacks returns a map with the last error of bpf_get_stackid (or 0) at 0, and a function that detaches the program.
func recordStacks(t testing.TB, tracepoint string, stacks *ebpf.Map, flags int32) (lastError *ebpf.Map, detach func()) {
	t.Helper()
	lastError = igtest.Map(t, &ebpf.MapSpec{Name: "test_errors", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
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

// formatStack formats a stack like Inspektor Gadget.
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

// runningKernel returns the symbols of this kernel, or skips a test if they are hidden.
func runningKernel(t testing.TB) *KernelSymbols {
	t.Helper()
	symbols, err := LoadKernelSymbols()
	if symbols.Start == 0 {
		t.Skipf("the kernel's addresses are hidden: %s", err)
	}
	require.NoError(t, err)
	return symbols
}

// recordedStacks returns a map that holds kernel stacks of this process, and the kernel's symbols.
func recordedStacks(t testing.TB) (*ebpf.Map, *kallsyms.KAllSyms) {
	t.Helper()
	igtest.NeedRoot(t)
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

// TestKernelOnKernel checks frames of stacks that this kernel records.
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
				continue // a function of a module
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

		// A stack with another depth has replaced the entry.
		frames, outcome = kernel.Append(nil, append(text, "one_more; "...), int32(id), true)
		require.Equal(t, OK, outcome)
		for _, f := range frames {
			require.Zero(t, f.Address, "%s", f.Name)
		}

		// The entry no longer exists.
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

// TestKernelErrors makes the kernel return each error that Missing distinguishes.
func TestKernelErrors(t *testing.T) {
	igtest.NeedRoot(t)
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
	// A map with room for one user stack loses all others.
	const userStack = 1 << 8
	depth := 0
	got := record(1, userStack|fastStackCmp, func() { depth++; syscallAt(depth % 40) })
	require.Contains(t, got, -int32(unix.EEXIST))
	for id := range got {
		if id != 0 {
			require.Equal(t, Lost, Missing(id, true), "%s", unix.Errno(-id))
		}
	}

	// The program skips more frames than there are, as in user mode. So there is no stack, and none is lost.
	got = record(1, 255, func() { syscallAt(1) })
	require.Contains(t, got, -int32(unix.EFAULT))
	require.Equal(t, Empty, Missing(-int32(unix.EFAULT), true))
}

// syscallAt makes a system call at a given depth, so its user stack is unique.
//
//go:noinline
func syscallAt(depth int) {
	if depth > 0 {
		syscallAt(depth - 1)
		return
	}
	_ = unix.Getppid()
}

// TestKernelSyscalls traces a system call. Its stack contains only the system call's entry.
func TestKernelSyscalls(t *testing.T) {
	igtest.NeedRoot(t)
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

// TestKernelReadsHashMaps checks stacks that gadgets store in their own hash maps.
func TestKernelReadsHashMaps(t *testing.T) {
	igtest.NeedRoot(t)
	const id = 1<<31 - 1
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		m := igtest.Map(t, &ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
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
	igtest.NeedRoot(t)
	array := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	for _, m := range []*ebpf.Map{nil, array} {
		k := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: testSymbols()})
		frames, outcome := k.Append(nil, list("a", "b"), 0, true)
		require.Equal(t, OK, outcome)
		require.Equal(t, []string{"a", "b"}, names(frames))
	}
}

// TestStackMapIDs checks the range of IDs, on which the Janitor's table depends.
func TestStackMapIDs(t *testing.T) {
	igtest.NeedRoot(t)
	m := newStackMap(t, igStackEntries)
	n := uint32(1) << bits.Len32(igStackEntries-1)
	require.ErrorIs(t, m.Delete(n-1), ebpf.ErrKeyNotExist)
	err := m.Delete(n)
	require.Error(t, err)
	require.NotErrorIs(t, err, ebpf.ErrKeyNotExist, "an ID that cannot be")
}

// TestModulesOnKernel finds functions of this kernel's modules by their addresses.
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
	// Several functions can have the same address.
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
