package stack

import (
	"bufio"
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// addressesOf returns the addresses of each name in /proc/kallsyms.
func addressesOf(t *testing.T) map[string][]uint64 {
	t.Helper()
	f, err := os.Open("/proc/kallsyms")
	require.NoError(t, err)
	defer f.Close()
	all := map[string][]uint64{}
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		addr, err := strconv.ParseUint(fields[0], 16, 64)
		require.NoError(t, err)
		all[fields[2]] = append(all[fields[2]], addr)
	}
	require.NoError(t, scanner.Err())
	return all
}

// TestKernelID names stacks that this kernel records, and compares the names with Inspektor Gadget's.
func TestKernelID(t *testing.T) {
	m, ig := recordedStacks(t)
	symbols := runningKernel(t)
	at := addressesOf(t)
	k := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: symbols, RawAddresses: true})
	all := NewKernel(KernelOptions{Map: func() *ebpf.Map { return m }, Symbols: symbols, RawAddresses: true, KeepTracing: true})
	named := 0
	for _, id := range keys(t, m) {
		if id == 0 {
			continue // valid for bpf_get_stackid, but not for AppendID
		}
		_, addrs := formatStack(t, m, id, ig)
		frames, outcome, err := k.AppendID(nil, int32(id))
		require.NoError(t, err)
		require.Equal(t, OK, outcome)
		require.Contains(t, frames[0].Name, "schedule", "the frames of the tracing are left out")
		frames, outcome, err = all.AppendID(nil, int32(id))
		require.NoError(t, err)
		require.Equal(t, OK, outcome)
		require.Len(t, frames, len(addrs))
		for i, f := range frames {
			require.Equal(t, addrs[i], f.Address)
			if addrs[i] < symbols.Start || addrs[i] >= symbols.End {
				continue
			}
			within := addrs[i]
			if i > 0 {
				within--
			}
			want := ig.LookupByInstructionPointer(within)
			shared := slices.ContainsFunc(at[f.Name], func(addr uint64) bool { return slices.Contains(at[want], addr) })
			require.True(t, shared, "%q at %#x is not %q", f.Name, addrs[i], want)
			require.Equal(t, profile.FrameKernel, f.Type)
			require.Equal(t, profile.Mapping{File: "[kernel.kallsyms]", GNUBuildID: symbols.BuildID, Symbolized: true}, f.Mapping)
			named++
		}
	}
	require.Positive(t, named)
}

func TestIDsWithoutAStack(t *testing.T) {
	igtest.NeedRoot(t)
	stacks := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
	require.NoError(t, stacks.Put(uint32(4), make([]uint64, igStackDepth)))
	mapOf := func() *ebpf.Map { return stacks }
	for _, tt := range []struct {
		name    string
		get     func() *ebpf.Map
		id      int32
		outcome Outcome
	}{
		{"not asked for", mapOf, 0, Empty},
		{"no frames", mapOf, -14, Empty},
		{"the map was full", mapOf, -7, Lost},
		{"gone from the map", mapOf, 3, Lost},
		{"an empty entry", mapOf, 4, Lost},
		{"no map yet", func() *ebpf.Map { return nil }, 3, Lost},
		{"no map", nil, 3, Lost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := NewKernel(KernelOptions{Map: tt.get, Symbols: testSymbols()})
			frames, outcome, err := k.AppendID(nil, tt.id)
			require.NoError(t, err)
			require.Equal(t, tt.outcome, outcome)
			require.Empty(t, frames)
			u := NewUser(UserOptions{Map: tt.get})
			frames, outcome = u.AppendID(nil, tt.id)
			require.Equal(t, tt.outcome, outcome)
			require.Empty(t, frames)
		})
	}
}

// caller makes a system call on the goroutine's own stack.
//
//go:noinline
func caller() bool { return unix.Close(-1) != nil }

// TestUserID checks stacks of this process that the kernel records.
func TestUserID(t *testing.T) {
	igtest.NeedRoot(t)
	const userStack = 1 << 8 // BPF_F_USER_STACK
	m := newStackMap(t, igStackEntries)
	_, detach := recordStacks(t, "sys_enter", m, fastStackCmp|userStack)
	for range 20 {
		require.True(t, caller())
	}
	detach()
	u := NewUser(UserOptions{Map: func() *ebpf.Map { return m }})
	found := false
	for _, id := range keys(t, m) {
		if id == 0 {
			continue
		}
		frames, outcome := u.AppendID(nil, int32(id))
		require.Equal(t, OK, outcome)
		var all []string
		for i, f := range frames {
			require.Empty(t, f.Name)
			require.Equal(t, profile.FrameNative, f.Type)
			require.NotZero(t, f.Address)
			require.Zero(t, f.Mapping)
			require.Equal(t, f.Address, u.Addresses(len(frames))[i])
			name := ""
			if fn := runtime.FuncForPC(uintptr(f.Address - 1)); fn != nil {
				name = fn.Name()
			}
			all = append(all, name)
		}
		i := slices.IndexFunc(all, func(name string) bool { return strings.HasSuffix(name, "/stack.caller") })
		if i >= 0 {
			found = true
			require.Contains(t, all[i+1], "TestUserID")
			require.Equal(t, "testing.tRunner", all[i+2])
		}
	}
	require.True(t, found)
}

func TestUserIDWithBuildIDs(t *testing.T) {
	igtest.NeedRoot(t)
	const id = 1<<31 - 1
	stacks := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: igStackDepth * 8, MaxEntries: 16})
	buildIDs := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: igStackDepth * 32, MaxEntries: 16})
	addrs := make([]uint64, igStackDepth)
	copy(addrs, []uint64{0x401000, 0x7f0000001000, 0x7f0000002000, 0x20})
	require.NoError(t, stacks.Put(uint32(id), addrs))
	records := make([]buildIDRecord, igStackDepth)
	records[0] = buildIDRecord{Status: buildIDValid, Where: 0x1000}
	_, err := hex.Decode(records[0].ID[:], []byte(testBuildID))
	require.NoError(t, err)
	records[1] = buildIDRecord{Status: buildIDAddress, Where: 0x7f0000001000}
	require.NoError(t, buildIDs.Put(uint32(id), records))

	u := NewUser(UserOptions{Map: func() *ebpf.Map { return stacks }, BuildIDs: func() *ebpf.Map { return buildIDs }})
	want := []profile.Frame{
		{Address: 0x1000, Mapping: profile.Mapping{GNUBuildID: testBuildID}, Type: profile.FrameNative},
		{Address: 0x7f0000001000, Type: profile.FrameNative},
		{Address: 0x7f0000002000, Type: profile.FrameNative},
	}
	frames, outcome := u.AppendID(nil, id)
	require.Equal(t, OK, outcome)
	require.Equal(t, want, frames, "what follows garbage is no frame")
	require.Equal(t, addrs[:3], u.Addresses(3))

	// A stack without an entry in the map of build IDs must not get the previous stack's build IDs.
	require.NoError(t, buildIDs.Delete(uint32(id)))
	want[0].Address, want[0].Mapping = 0x401000, profile.Mapping{}
	frames, _ = u.AppendID(nil, id)
	require.Equal(t, want, frames)
}
