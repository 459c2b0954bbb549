package main

import (
	"bytes"
	"os"
	"sync"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
)

// vdsoPath is what the vDSO is called where it is handed to the profiler as a file. The profiler itself would read it from the memory of
// the process that comes first, which can have changed it, and use that for all.
const vdsoPath = "/" + process.VdsoPathName

// vdso returns the code that the kernel has given this process, as to all others; nil if it has given none.
var vdso = sync.OnceValue(func() (code []byte) {
	self := process.New(libpf.PID(os.Getpid()), libpf.PID(os.Getpid()))
	_, _ = self.IterateMappings(func(m process.RawMapping) bool {
		if !m.IsVDSO() {
			return true
		}
		code = make([]byte, m.Length)
		if _, err := self.GetRemoteMemory().ReadAt(code, int64(m.Vaddr)); err != nil {
			code = nil
		}
		return true
	})
	return code
})

// memoryFile is a file in memory.
type memoryFile struct{ *bytes.Reader }

// Close implements io.Closer.
func (memoryFile) Close() error { return nil }
