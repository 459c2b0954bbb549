package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"golang.org/x/sys/unix"
)

// mapping maps files into this process, always at the same address.
type mapping struct {
	t    *testing.T
	code []byte
}

func newMapping(t *testing.T, size int) *mapping {
	t.Helper()
	code, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(code) })
	return &mapping{t, code}
}

func (m *mapping) of(path string) *process.RawMapping {
	m.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	at := uintptr(address(m.code))
	if _, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(len(m.code)), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, f.Fd(), 0); errno != 0 {
		m.t.Fatal(errno)
	}
	return &process.RawMapping{Vaddr: uint64(at), Length: uint64(len(m.code)), Inode: 1, Device: 1, Path: path}
}

func address(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

func own() watched {
	return watch(process.New(libpf.PID(os.Getpid()), libpf.PID(os.Getpid())), &brought{})
}

// TestFileID requires different IDs for two files that differ only in the middle, which the profiler confuses. A file must have
// the same ID wherever it is mapped, until it is written to.
func TestFileID(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, middle byte) string {
		path := filepath.Join(dir, name)
		content := bytes.Repeat([]byte{1}, 3*4096)
		content[len(content)/2] = middle
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	service, other := write("service", 1), write("other", 2)
	m := newMapping(t, 3*4096)
	upstream := func(path string) libpf.FileID {
		id, err := own().Process.CalculateMappingFileID(m.of(path))
		if err != nil {
			t.Skipf("/proc/self/map_files cannot be read: %v", err)
		}
		return id
	}
	if upstream(service) != upstream(other) {
		t.Fatal("the profiler tells them apart")
	}
	type seen struct {
		id   libpf.FileID
		when int64
	}
	see := func(m *process.RawMapping) seen {
		w := own()
		when := w.GetMappingFileLastModified(m)
		id, err := w.CalculateMappingFileID(m)
		if err != nil {
			t.Fatal(err)
		}
		return seen{id, when}
	}
	first := see(m.of(service))
	if second := see(m.of(other)); second.id == first.id || second.when == first.when {
		t.Error("two files are one")
	}
	if again := see(newMapping(t, 4096).of(service)); again != first {
		t.Error("one file is two")
	}
	// The hash of the specification is unchanged.
	hash, _, err := own().content(m.of(other))
	if err != nil || hash != upstream(service) {
		t.Errorf("%v, not %v: %v", hash, upstream(service), err)
	}

	// Write to the file, and reset its modification time.
	var st unix.Stat_t
	if err := unix.Stat(service, &st); err != nil {
		t.Fatal(err)
	}
	for before := st.Ctim; before == st.Ctim; { // file systems' clocks have a resolution of milliseconds
		write("service", 3)
		if err := os.Chtimes(service, time.Time{}, time.Unix(st.Mtim.Unix())); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(service, &st); err != nil {
			t.Fatal(err)
		}
	}
	if later := see(m.of(service)); later.id == first.id || later.when == first.when {
		t.Error("a file that was written to is the one of before")
	}
}

// TestExchangedFile requires that two files are not confused if a process replaces a mapped file with another during the read.
func TestExchangedFile(t *testing.T) {
	dir := t.TempDir()
	var paths [2]string
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(paths[i], make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := newMapping(t, 4096)
	w := own()
	at := m.of(paths[0])
	first, err := w.OpenMappingFile(at)
	if err != nil {
		t.Skipf("/proc/self/map_files cannot be read: %v", err)
	}
	defer first.Close()
	again, err := w.OpenMappingFile(at)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	m.of(paths[1])
	if f, err := w.OpenMappingFile(at); err == nil || f != nil {
		t.Errorf("the other file: %v, %v", f, err)
	}
	if id, err := w.CalculateMappingFileID(at); err == nil {
		t.Errorf("the other file's ID: %v", id)
	}
	if _, _, err := w.content(at); err == nil {
		t.Error("the other file's content")
	}
	if _, err := own().OpenMappingFile(at); err != nil {
		t.Errorf("when the process is read again: %v", err)
	}
}
