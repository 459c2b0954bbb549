package main

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// counters are stored in memory that the starter can still read after this process was killed.
type counters [wire.CounterCount]atomic.Uint64

// openCounters maps the file that the starter passed.
func openCounters(fd int) (*counters, error) {
	b, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(counters{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*counters)(unsafe.Pointer(&b[0])), nil
}
