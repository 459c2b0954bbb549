package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// mapped is a process with mapped files.
type mapped struct {
	process.Process
	pid   libpf.PID
	paths []string
}

func (m mapped) PID() libpf.PID { return m.pid }

func (m mapped) IterateMappings(callback func(process.RawMapping) bool) (uint32, error) {
	for _, path := range m.paths {
		if !callback(process.RawMapping{Path: path}) {
			return 0, process.ErrCallbackStopped
		}
	}
	return 3, errors.New("read in part")
}

// A program that contains .NET counts as .NET once its library is seen, whatever its executable's name, until another process
// gets the PID.
func TestBroughtRuntime(t *testing.T) {
	var out lockedBuffer
	s := newTestSampler(&out)
	defer s.close()
	s.procs.pids[7] = known{proc: &proc{Proc: wire.Proc{PID: 7, Start: 1, Exe: "shop"}}, alive: 1 << 62}
	native := libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: 0x10}
	var seen int
	read := func(paths ...string) {
		t.Helper()
		n, err := watch(mapped{pid: 7, paths: paths}, &s.brought).IterateMappings(func(process.RawMapping) bool { seen++; return true })
		require.EqualValues(t, 3, n, "as the process has said")
		require.Error(t, err)
	}
	expect := func(expected, missing uint64) {
		t.Helper()
		s.report(t, trace(native))
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.stats.Languages[wire.FrameDotnet]
		assert.Equal(t, []uint64{expected, missing}, []uint64{l.Expected, l.Missing})
	}
	expect(0, 0)
	read("/app/shop", "", "/app/libclrjit.so")
	expect(0, 0)
	read("/app/shop", "/app/libcoreclr.so")
	expect(1, 1)
	s.report(t, trace(libpf.Frame{Type: libpf.DotnetFrame, FunctionName: libpf.Intern("Main")}))
	expect(3, 2)
	read("/usr/bin/bash", "/usr/lib/libc.so.6")
	expect(3, 2)
	assert.Equal(t, 7, seen, "mappings that the profiler was shown")
}

// The number of remembered processes must be limited.
func TestBroughtIsBounded(t *testing.T) {
	var b brought
	for pid := range uint32(3 * maxProcs) {
		b.set(pid, wire.FrameDotnet)
	}
	assert.LessOrEqual(t, len(b.of), maxProcs)
	assert.Equal(t, wire.FrameDotnet, b.language(3*maxProcs-1))
}
