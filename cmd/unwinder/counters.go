package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// counters are stored in memory that the starter can still read after this process was killed.
type counters [wire.CounterCount]atomic.Uint64

// openCounters maps the file that the starter passed. Without a file, the counters are in private memory.
func openCounters(fd int) (*counters, error) {
	f := os.NewFile(uintptr(fd), "counters")
	if info, err := f.Stat(); err != nil || info.Size() < int64(unsafe.Sizeof(counters{})) {
		return &counters{}, nil
	}
	b, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(counters{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*counters)(unsafe.Pointer(&b[0])), nil
}
