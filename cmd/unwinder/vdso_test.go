package main

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"golang.org/x/sys/unix"
)

// TestChangedVDSO requires that a process that has destroyed its vDSO does not affect the vDSO of others.
func TestChangedVDSO(t *testing.T) {
	if vdso() == nil {
		t.Skip("the kernel has given no vDSO")
	}
	changed := newMapping(t, len(vdso())).code
	require.NoError(t, unix.Mprotect(changed, unix.PROT_READ))
	self := process.New(libpf.PID(os.Getpid()), libpf.PID(os.Getpid()))
	raw := process.RawMapping{Vaddr: address(changed), Length: uint64(len(changed)), Inode: 50, Path: process.VdsoPathName}
	_, err := process.OpenELFMapping(self, &raw)
	require.Error(t, err, "the profiler does not read the process's memory: this test cannot fail")
	w := watch(oneMapping{self, raw}, &brought{})
	seen := 0
	_, err = w.IterateMappings(func(m process.RawMapping) bool {
		seen++
		file, err := process.OpenELFMapping(w, &m)
		require.NoError(t, err)
		defer file.Close()
		if s, err := file.LookupSymbol("__vdso_clock_gettime"); err != nil || s.Address == 0 {
			s, err := file.LookupSymbol("__kernel_clock_gettime") // arm64
			require.NoError(t, err, "it is not the kernel's")
			assert.NotZero(t, s.Address)
		}
		id, err := w.CalculateMappingFileID(&m)
		hash, _, err2 := w.content(&m)
		assert.NoError(t, errors.Join(err, err2))
		assert.NotZero(t, id)
		assert.NotEqual(t, hash, id)
		return true
	})
	assert.NoError(t, err)
	assert.Equal(t, 1, seen, "mappings")
}

// oneMapping is a process with one mapping.
type oneMapping struct {
	process.Process
	m process.RawMapping
}

func (o oneMapping) IterateMappings(callback func(process.RawMapping) bool) (uint32, error) {
	callback(o.m)
	return 0, nil
}
