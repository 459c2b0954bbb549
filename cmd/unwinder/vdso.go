package main

import (
	"bytes"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// vdsoPath is the file name under which the profiler finds the vDSO. The profiler itself would read the vDSO from the first
// process's memory, which this process can have changed. It would then use this copy for all processes.
const vdsoPath = "/" + process.VdsoPathName

// vdso returns the code of the vDSO, which is the same in all processes, or nil if there is none.
var vdso = sync.OnceValue(func() []byte {
	code, _ := procfs.VDSO()
	return code
})

// memoryFile is a file with its content in memory.
type memoryFile struct{ *bytes.Reader }

// Close implements io.Closer.
func (memoryFile) Close() error { return nil }
