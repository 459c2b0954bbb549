package main

import (
	"os"
	"testing"

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
	if err := unix.Mprotect(changed, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	self := process.New(libpf.PID(os.Getpid()), libpf.PID(os.Getpid()))
	raw := process.RawMapping{Vaddr: address(changed), Length: uint64(len(changed)), Inode: 50, Path: process.VdsoPathName}
	if _, err := process.OpenELFMapping(self, &raw); err == nil {
		t.Fatal("the profiler does not read the process's memory: this test cannot fail")
	}
	w := watch(oneMapping{self, raw}, &brought{})
	seen := 0
	_, err := w.IterateMappings(func(m process.RawMapping) bool {
		seen++
		file, err := process.OpenELFMapping(w, &m)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if s, err := file.LookupSymbol("__vdso_clock_gettime"); err != nil || s.Address == 0 {
			if s, err := file.LookupSymbol("__kernel_clock_gettime"); err != nil || s.Address == 0 { // arm64
				t.Errorf("it is not the kernel's: %v", err)
			}
		}
		id, err := w.CalculateMappingFileID(&m)
		hash, _, err2 := w.content(&m)
		if err != nil || err2 != nil || id == hash || id == (libpf.FileID{}) {
			t.Errorf("ID %v, hash %v: %v, %v", id, hash, err, err2)
		}
		return true
	})
	if err != nil || seen != 1 {
		t.Errorf("%d mappings: %v", seen, err)
	}
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
