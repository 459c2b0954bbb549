package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.opentelemetry.io/ebpf-profiler/reporter"
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
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(code) })
	return &mapping{t, code}
}

func (m *mapping) of(path string) *process.RawMapping {
	m.t.Helper()
	f, err := os.Open(path)
	require.NoError(m.t, err)
	defer f.Close()
	at := uintptr(address(m.code))
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(len(m.code)), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, f.Fd(), 0)
	require.Zero(m.t, errno)
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
		require.NoError(t, os.WriteFile(path, content, 0o600))
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
	require.Equal(t, upstream(service), upstream(other), "the profiler distinguishes them")
	type seen struct {
		id   libpf.FileID
		when int64
	}
	see := func(m *process.RawMapping) seen {
		w := own()
		when := w.GetMappingFileLastModified(m)
		id, err := w.CalculateMappingFileID(m)
		require.NoError(t, err)
		return seen{id, when}
	}
	first := see(m.of(service))
	second := see(m.of(other))
	assert.NotEqual(t, first.id, second.id)
	assert.NotEqual(t, first.when, second.when)
	assert.Equal(t, first, see(newMapping(t, 4096).of(service)))
	// The hash of the specification is unchanged.
	hash, _, err := own().content(m.of(other))
	assert.NoError(t, err)
	assert.Equal(t, upstream(service), hash)

	// Write to the file, and reset its modification time.
	var st unix.Stat_t
	require.NoError(t, unix.Stat(service, &st))
	for before := st.Ctim; before == st.Ctim; { // file systems' clocks have a resolution of milliseconds
		write("service", 3)
		require.NoError(t, os.Chtimes(service, time.Time{}, time.Unix(st.Mtim.Unix())))
		require.NoError(t, unix.Stat(service, &st))
	}
	later := see(m.of(service))
	assert.NotEqual(t, first.id, later.id, "the file was written to")
	assert.NotEqual(t, first.when, later.when)
}

// TestFileOfAnExitedProcess requires that a file keeps its path if its process exits just after the profiler has read the file. The
// profiler does not report this file again for hours.
func TestFileOfAnExitedProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "short-lived")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	m := newMapping(t, 4096)
	w, at := own(), m.of(path)
	if _, err := w.CalculateMappingFileID(at); err != nil {
		t.Skipf("/proc/self/map_files cannot be read: %v", err)
	}
	require.NoError(t, unix.Munmap(m.code))
	_, err := w.OpenMappingFile(at)
	require.Error(t, err, "the mapping is gone")
	s := newTestSampler(io.Discard)
	file := libpf.NewFrameMappingFile(libpf.FrameMappingFileData{FileName: libpf.Intern("short-lived")})
	s.ReportExecutable(&reporter.ExecutableMetadata{MappingFile: file, Mapping: at, Process: w})
	seen, _ := s.out.executables.Get(file)
	assert.Equal(t, path, seen.path)
}

// TestExchangedFile requires that two files are not confused if a process replaces a mapped file with another during the read.
func TestExchangedFile(t *testing.T) {
	dir := t.TempDir()
	var paths [2]string
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(paths[i], make([]byte, 4096), 0o600))
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
	require.NoError(t, err)
	defer again.Close()
	m.of(paths[1])
	f, err := w.OpenMappingFile(at)
	assert.Error(t, err, "the other file")
	assert.True(t, f == nil) // assert.Nil also accepts a nil file in the interface
	_, err = w.CalculateMappingFileID(at)
	assert.Error(t, err, "the other file's ID")
	_, _, err = w.content(at)
	assert.Error(t, err, "the other file's content")
	_, err = own().OpenMappingFile(at)
	assert.NoError(t, err, "when the process is read again")
}
