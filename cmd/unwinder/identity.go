package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/process"
)

// identity distinguishes a file from all other files, and from its own content before a write. The profiler's own file ID hashes
// the size, the first 4 KiB and the last 4 KiB. Files with equal hashes would share unwind rules and names.
type identity struct {
	device, inode uint64
	size          int64
	changed       syscall.Timespec // ctime, which programs cannot choose
}

// secret prevents programs from constructing two identities with the same ID. The profiler's eBPF programs use only 64 of the
// ID's bits.
var secret = func() (b [32]byte) {
	_, _ = rand.Read(b[:]) // never fails
	return b
}()

// fileID returns the file's ID for the profiler. It differs in each run of this program.
func (i identity) fileID() libpf.FileID {
	b := secret[:]
	for _, n := range []uint64{i.device, i.inode, uint64(i.size), uint64(i.changed.Sec), uint64(i.changed.Nsec)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	sum := sha256.Sum256(b)
	return libpf.NewFileID(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:]))
}

// errExchanged makes the profiler try again later.
var errExchanged = fmt.Errorf("the process has mapped another file at this address, or the file has changed: %w", os.ErrNotExist)

// open opens a file that a process has mapped. The profiler opens a mapping several times, and the process can map another file
// there in between. Therefore open returns an error if the file has changed.
func (w watched) open(m *process.RawMapping) (process.ReadAtCloser, identity, error) {
	if m.Path == vdsoPath && m.Device == 0 {
		return memoryFile{bytes.NewReader(vdso())}, identity{size: int64(len(vdso()))}, nil
	}
	f, err := w.Process.OpenMappingFile(m)
	if err != nil {
		return nil, identity{}, err
	}
	id, err := identify(f)
	if before, there := w.files[m.Vaddr]; err == nil && there && before != id {
		err = errExchanged
	}
	if err != nil {
		return nil, identity{}, errors.Join(err, f.Close())
	}
	w.files[m.Vaddr] = id
	return f, id, nil
}

func identify(f process.ReadAtCloser) (identity, error) {
	file, ok := f.(*os.File)
	if !ok {
		return identity{}, fmt.Errorf("a mapped file has the type %T", f)
	}
	info, err := file.Stat()
	if err != nil {
		return identity{}, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return identity{uint64(st.Dev), st.Ino, st.Size, st.Ctim}, nil //nolint:unconvert // types differ by architecture
}

// identity returns the identity of a file that a process has mapped.
func (w watched) identity(m *process.RawMapping) (identity, error) {
	f, id, err := w.open(m)
	if err != nil {
		return identity{}, err
	}
	return id, f.Close()
}

// content returns a mapped file's identity and partial hash. The profiles specification uses this hash as a build ID. A second call
// returns the same, also if the process has exited since then.
func (w watched) content(m *process.RawMapping) (hash libpf.FileID, id identity, err error) {
	if hash, there := w.hashes[m.Vaddr]; there {
		return hash, w.files[m.Vaddr], nil
	}
	f, id, err := w.open(m)
	if err != nil {
		return hash, id, err
	}
	defer func() { _ = f.Close() }()
	hash, err = libpf.FileIDFromExecutableReader(io.NewSectionReader(f, 0, id.size))
	if err == nil {
		w.hashes[m.Vaddr] = hash
	}
	return hash, id, err
}

// OpenMappingFile implements process.Process.
func (w watched) OpenMappingFile(m *process.RawMapping) (process.ReadAtCloser, error) {
	f, id, err := w.open(m)
	if err != nil {
		return nil, err
	}
	return withGoLeaves(withRubySymbols(f, m), id.size), nil
}

// GetMappingFileLastModified implements process.Process. The profiler compares the result with the value from the last read of
// this device and inode. On btrfs, different files can share a device and inode.
func (w watched) GetMappingFileLastModified(m *process.RawMapping) int64 {
	if id, err := w.identity(m); err == nil {
		return int64(id.fileID().Hi())
	}
	return 0
}

// CalculateMappingFileID implements process.Process.
func (w watched) CalculateMappingFileID(m *process.RawMapping) (libpf.FileID, error) {
	if !m.IsFileBacked() {
		return w.Process.CalculateMappingFileID(m)
	}
	_, id, err := w.content(m) // with the hash, because ReportExecutable needs it a moment later
	return id.fileID(), err
}

// OpenELF implements process.Process. It rejects all names, because the profiler would read debug files by name. In its own mount
// namespace, a process could supply a forged debug file for another process's file.
func (w watched) OpenELF(name string) (*pfelf.File, error) {
	return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
}
