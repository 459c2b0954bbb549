package main

import (
	"bytes"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// vdsoPath is the vDSO's file name for the profiler. The profiler itself would read it from the memory of the first process,
// which may have changed it, and use that for all.
const vdsoPath = "/" + process.VdsoPathName

// vdso returns the code of the vDSO, which is the same in all processes, or nil if there is none.
var vdso = sync.OnceValue(func() []byte {
	code, _ := procfs.VDSO()
	return code
})

// memoryFile is a file in memory.
type memoryFile struct{ *bytes.Reader }

// Close implements io.Closer.
func (memoryFile) Close() error { return nil }
