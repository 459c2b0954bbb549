package main

import (
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unique"

	"github.com/elastic/go-freelru"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// table tracks which entries were written. It is not safe for concurrent use.
type table struct {
	w          *wire.Writer
	generation uint32 // starts at 1, because unwritten entries have 0
	files      map[libpf.FrameMappingFile]uint32
	mappings   map[libpf.FrameMapping]uint32
	frames     map[unique.Handle[libpf.Frame]]uint32
	ids        []uint32

	executables *freelru.SyncedLRU[libpf.FrameMappingFile, seenFile]
	// seen and before describe the written files of this generation and of the one before. executables can lack files that are
	// in use, and the profiler does not report them again.
	seen, before map[libpf.FrameMappingFile]seenFile
}

func newTable(w *wire.Writer) *table {
	return &table{
		w: w, generation: 1, files: map[libpf.FrameMappingFile]uint32{}, mappings: map[libpf.FrameMapping]uint32{},
		frames: map[unique.Handle[libpf.Frame]]uint32{}, executables: newExecutables(), seen: map[libpf.FrameMappingFile]seenFile{},
	}
}

// reset clears the tables here and in the reader.
func (t *table) reset() {
	t.generation++
	clear(t.files)
	clear(t.mappings)
	clear(t.frames)
	t.before, t.seen = t.seen, map[libpf.FrameMappingFile]seenFile{}
	t.w.Reset()
}

// unwound writes the stack of a gadget's event.
func (t *table) unwound(e event) {
	t.prepare(e.stack, e.proc)
	t.w.Unwound(e.id, e.stack.id, e.proc.id, &e.Said)
}

// prepare makes sure that a stack and a process have current IDs.
func (t *table) prepare(e *entry, p *proc) {
	if !t.w.Fits(min(len(e.frames), wire.MaxDepth)) {
		t.reset()
	}
	if e.generation != t.generation {
		e.id, e.generation = t.stack(e), t.generation
	}
	if p.generation != t.generation {
		p.id, p.generation = t.w.Proc(p.Proc), t.generation
	}
}

func (t *table) stack(e *entry) uint32 {
	t.ids = t.ids[:0]
	for _, h := range e.frames {
		if id := t.frame(h); id != 0 {
			t.ids = append(t.ids, id)
		}
	}
	return t.w.Stack(t.ids, e.abort)
}

// frame returns a frame's ID. It returns 0 for a pseudo frame, which states why the stack ends.
func (t *table) frame(h unique.Handle[libpf.Frame]) uint32 {
	if id, ok := t.frames[h]; ok {
		return id
	}
	f := h.Value()
	if f.Type.IsError() {
		return 0
	}
	w := wire.Frame{
		Type: frameType(f.Type), Function: f.FunctionName.String(), File: f.SourceFile.String(), Line: uint64(f.SourceLine),
	}
	// In interpreter frames, AddressOrLineno is a line, or an offset in the interpreted code.
	if w.Type == wire.FrameNative || w.Type == wire.FrameGo || w.Type == wire.FrameKernel {
		w.Address = uint64(f.AddressOrLineno)
	}
	mapping := uint32(0)
	if f.Mapping.Valid() {
		mapping = t.mapping(f.Mapping)
	}
	id := t.w.Frame(&w, mapping)
	t.frames[h] = id
	return id
}

func (t *table) mapping(m libpf.FrameMapping) uint32 {
	if id, ok := t.mappings[m]; ok {
		return id
	}
	v := m.Value()
	id := t.w.Mapping(t.file(v.File), uint64(v.Start), uint64(v.End), v.FileOffset)
	t.mappings[m] = id
	return id
}

func (t *table) file(f libpf.FrameMappingFile) uint32 {
	if id, ok := t.files[f]; ok {
		return id
	}
	v := f.Value()
	w := wire.File{Name: v.FileName.String(), GNUBuildID: v.GnuBuildID, GoBuildID: v.GoBuildID}
	copy(w.Version[:], v.FileID.Bytes())
	w.Hash = w.Version // for kernel files, which are not in executables
	seen, ok := t.executables.Get(f)
	if !ok {
		seen, ok = t.before[f]
	}
	if ok {
		t.seen[f] = seen
		copy(w.Hash[:], seen.hash.Bytes())
		w.Path, w.Device, w.Inode, w.Proc, w.Low, w.High = seen.path, seen.device, seen.inode, seen.pid, seen.low, seen.high
	}
	if w.Path == vdsoPath {
		w.Path = "" // the vDSO is not a file
	}
	id := t.w.File(&w)
	t.files[f] = id
	return id
}

// seenFile describes where a file was first seen.
type seenFile struct {
	path          string
	hash          libpf.FileID
	device, inode uint64
	pid           uint32
	low, high     uint64
}

// maxFiles limits the remembered files. The profiler itself remembers half as many, and does not report them again.
const maxFiles = 32768

// newExecutables returns an empty cache of the files that the profiler has read.
func newExecutables() *freelru.SyncedLRU[libpf.FrameMappingFile, seenFile] {
	seed := maphash.MakeSeed()
	files, _ := freelru.NewSynced[libpf.FrameMappingFile, seenFile](maxFiles, func(f libpf.FrameMappingFile) uint32 {
		return uint32(maphash.Comparable(seed, f))
	})
	return files
}

// see records where a file was first seen. Unlike the other methods, it can be called at any time.
func (t *table) see(id libpf.FrameMappingFile, f seenFile) {
	if _, there := t.executables.Get(id); !there {
		t.executables.Add(id, f)
	}
}

// ReportExecutable implements reporter.ExecutableReporter.
func (s *sampler) ReportExecutable(m *reporter.ExecutableMetadata) {
	if m == nil || m.Mapping == nil || m.Process == nil {
		return
	}
	if w, ok := m.Process.(watched); ok {
		if hash, id, err := w.content(m.Mapping); err == nil {
			s.out.see(m.MappingFile, seenFile{
				path: strings.Clone(m.Mapping.Path), hash: hash, device: id.device, inode: id.inode,
				pid: uint32(m.Process.PID()), low: m.Mapping.Vaddr, high: m.Mapping.Vaddr + m.Mapping.Length,
			})
		}
	}
	s.mu.Lock()
	s.news = true
	s.mu.Unlock()
}

// frameTypes converts the profiler's frame types.
var frameTypes = [...]wire.FrameType{
	libpf.Native: wire.FrameNative, libpf.Kernel: wire.FrameKernel, libpf.Go: wire.FrameGo, libpf.Python: wire.FramePython,
	libpf.HotSpot: wire.FrameJVM, libpf.V8: wire.FrameV8, libpf.Ruby: wire.FrameRuby, libpf.PHP: wire.FramePHP,
	libpf.PHPJIT: wire.FramePHP, libpf.Perl: wire.FramePerl, libpf.Dotnet: wire.FrameDotnet, libpf.BEAM: wire.FrameBEAM,
	libpf.LuaJIT: wire.FrameLua,
}

func frameType(t libpf.FrameType) wire.FrameType {
	if i := int(t.Interpreter()); i < len(frameTypes) {
		return frameTypes[i]
	}
	return wire.FrameUnknown
}

// kernelMemory returns the memory that this process's eBPF maps and programs use, as reported by the kernel.
func kernelMemory() uint64 {
	const dir = "/proc/self/fdinfo"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	sum := uint64(0)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "memlock:"); ok {
				n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
				sum += n
			}
		}
	}
	return sum
}
