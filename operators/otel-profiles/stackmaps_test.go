package otelprofiles

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// takenStack returns a stack map that contains this thread's stack, and the stack's ID.
func takenStack(t *testing.T, flags int32) (stacks *ebpf.Map, id int32) {
	t.Helper()
	stacks = igtest.Map(t, &ebpf.MapSpec{Type: ebpf.StackTrace, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 1 << 14})
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R2, stacks.FD()), asm.Mov.Imm(asm.R3, flags), asm.FnGetStackid.Call(), asm.Return(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, prog.Close()) })
	taken, err := prog.Run(&ebpf.RunOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, int32(taken), int32(0))
	return stacks, int32(taken)
}

// Only stack maps need sweeps.
func TestOtherMapsAreNotSwept(t *testing.T) {
	lru := igtest.Map(t, &ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 16})
	s := newStackMaps((&gadgettest.Gadget{}).Make(t.Context(), New()))
	s.kernel, s.user = func() *ebpf.Map { return lru }, func() *ebpf.Map { return nil }
	require.False(t, s.kept())
	s.due.Store(true)
	s.note(1, 1)
}

// Kernel and user stacks of rows must stay in their maps. All others must be removed.
func TestNamedStacksStay(t *testing.T) {
	igtest.NeedRoot(t)
	kernel, kernelID := takenStack(t, 0)
	user, userID := takenStack(t, unix.BPF_F_USER_STACK)
	there := func(m *ebpf.Map, id int32) bool { return m.Lookup(id, make([]uint64, 127)) == nil }
	synctest.Test(t, func(t *testing.T) {
		s := newStackMaps((&gadgettest.Gadget{}).Make(t.Context(), New()))
		s.kernel, s.user = func() *ebpf.Map { return kernel }, func() *ebpf.Map { return user }
		require.True(t, s.kept())
		sweeps := func(kernel, user int32) {
			for range coldStack/time.Second + 2 {
				s.due.Store(true)
				s.note(kernel, user)
				time.Sleep(time.Second)
			}
		}
		sweeps(kernelID, userID)
		require.True(t, there(kernel, kernelID))
		require.True(t, there(user, userID))
		sweeps(-1, userID)
		require.False(t, there(kernel, kernelID))
		require.True(t, there(user, userID))
		sweeps(-1, -1)
		require.False(t, there(user, userID))
	})
}
