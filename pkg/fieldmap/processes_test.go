package fieldmap

import (
	"debug/elf"
	"fmt"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestProcesses has the files of a row's process looked up: that of this test.
func TestProcesses(t *testing.T) {
	if _, err := os.Stat("/proc/self/map_files"); err != nil {
		t.Skipf("no map_files: %v", err)
	}
	exe, err := os.Stat("/proc/self/exe")
	require.NoError(t, err)
	inode := exe.Sys().(*syscall.Stat_t).Ino
	addr := uint64(reflect.ValueOf(TestProcesses).Pointer())
	row := func(pid uint32, inode uint64) map[string]any {
		return with(map[string]any{
			"user_stack_raw.symbols": "main.work; ", "user_stack_raw.addresses": fmt.Sprintf("0x%016x; ", addr),
			"user_stack_raw.inode": inode, "user_stack_raw.tgid_level0": pid, "user_stack_raw.base_addr_hash": uint32(1),
		})
	}
	o := testOptions()
	o.Processes = procmap.New(procmap.Options{})
	t.Cleanup(o.Processes.Close)
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	own := s.row(row(uint32(os.Getpid()), inode))

	first, _ := p.Sample(own)
	require.True(t, first.Provisional, "nothing is known at first")
	require.Zero(t, first.Stack[len(first.Stack)-1].Address, "an address that means something in the process only")
	var last profile.Frame
	require.Eventually(t, func() bool {
		smp, _ := p.Sample(own)
		last = smp.Stack[len(smp.Stack)-1]
		require.Equal(t, profile.FrameKernel, smp.Stack[0].Type)
		return !smp.Provisional
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, profile.FrameGo, last.Type)
	require.Len(t, last.Mapping.HTLHash, 32)
	code, err := elf.Open("/proc/self/exe")
	require.NoError(t, err)
	defer code.Close()
	if code.Type == elf.ET_EXEC {
		require.Equal(t, addr, last.Address, "a program that lies where it was linked to")
	} else {
		require.NotEqual(t, addr, last.Address)
	}

	// One key for all processes of one executable, another one for each executable.
	_, a := p.Keys(own)
	_, b := p.Keys(s.row(row(1, inode)))
	_, c := p.Keys(s.row(row(1, inode+1)))
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
}
