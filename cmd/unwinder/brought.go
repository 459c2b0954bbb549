package main

import (
	"path"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// libraries identify the language of a process with its own runtime, because its executable may have any name.
var libraries = map[string]wire.FrameType{"libcoreclr.so": wire.FrameDotnet}

// brought are the languages of processes, by their mapped libraries. The goroutine that reads processes sets them, and that of
// the sampler reads them.
type brought struct {
	mu sync.Mutex
	of map[uint32]wire.FrameType
}

func (b *brought) language(pid uint32) wire.FrameType {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[pid]
}

// set notes the languages of a process. Another process may have had the PID before.
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

// watched is a process as the profiler reads it, once. Its mappings are checked during that, because a second read would cost as much again.
type watched struct {
	process.Process
	brought *brought
	files   map[uint64]identity // opened files, by the address of their mapping
}

func watch(p process.Process, b *brought) watched { return watched{p, b, map[uint64]identity{}} }

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
