package main

import (
	"path"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// libraries maps runtime libraries to languages. The executables of processes with these runtimes can have any name.
var libraries = map[string]wire.FrameType{"libcoreclr.so": wire.FrameDotnet}

// brought records each process's language, as recognized by mapped libraries. The goroutine that reads processes sets the
// languages, and the sampler's goroutine reads them.
type brought struct {
	mu sync.Mutex
	of map[uint32]wire.FrameType
}

func (b *brought) language(pid uint32) wire.FrameType {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[pid]
}

// set records a process's language. It replaces the language of an earlier process with the same PID.
func (b *brought) set(pid uint32, language wire.FrameType) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if language == wire.FrameUnknown {
		delete(b.of, pid)
		return
	}
	if b.of == nil || len(b.of) >= maxProcs {
		b.of = map[uint32]wire.FrameType{}
	}
	b.of[pid] = language
}

// watched is a process that the profiler is reading. Its mappings are checked during this read, because a second read would
// double the cost.
type watched struct {
	process.Process
	brought *brought
	files   map[uint64]identity     // identities of opened files, by mapping address
	hashes  map[uint64]libpf.FileID // partial hashes of their content
}

func watch(p process.Process, b *brought) watched {
	return watched{p, b, map[uint64]identity{}, map[uint64]libpf.FileID{}}
}

// IterateMappings implements process.Process.
func (w watched) IterateMappings(callback func(process.RawMapping) bool) (uint32, error) {
	language := wire.FrameUnknown
	n, err := w.Process.IterateMappings(func(m process.RawMapping) bool {
		if l, known := libraries[path.Base(m.Path)]; known {
			language = l
		}
		if m.IsVDSO() && vdso() != nil {
			m.Path = vdsoPath
		}
		return callback(m)
	})
	w.brought.set(uint32(w.PID()), language)
	return n, err
}
