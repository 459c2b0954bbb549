package fieldmap

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
)

// TestProcesses checks that the files of a row's process, which is this test, are found.
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
	namer := names.New(names.Options{Tables: symbols.NewShared(func() symbols.Options { return symbols.Options{Reader: parse.Here{}} })})
	t.Cleanup(namer.Close)
	o.Names = namer
	o.Exporter.ProcMappings = true
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, o)
	own := s.row(row(uint32(os.Getpid()), inode))

	first := p.Sample(own)
	require.NotNil(t, first.Later, "nothing is known at first")
	require.Zero(t, first.Stack[len(first.Stack)-1].Address, "an address that means something in the process only")
	var last profile.Frame
	require.Eventually(t, func() bool {
		smp := p.Sample(own)
		last = smp.Stack[len(smp.Stack)-1]
		require.Equal(t, profile.FrameKernel, smp.Stack[0].Type)
		return smp.Later == nil
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, profile.FrameGo, last.Type)
	require.Equal(t, runtime.FuncForPC(uintptr(addr)).Name(), last.Name, "not what the text says")
	require.Equal(t, "processes_test.go", filepath.Base(last.File))
	require.Positive(t, last.Line)
	require.Len(t, last.Mapping.HTLHash, 32)
	code, err := elf.Open("/proc/self/exe")
	require.NoError(t, err)
	defer code.Close()
	if code.Type == elf.ET_EXEC {
		require.Equal(t, addr, last.Address, "a program that lies where it was linked to")
	} else {
		require.NotEqual(t, addr, last.Address)
	}

	// The threads of an address space share a key. Each executable has its own key.
	_, a := p.Keys(own)
	_, b := p.Keys(s.row(row(1, inode)))
	_, c := p.Keys(s.row(row(1, inode+1)))
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
}
