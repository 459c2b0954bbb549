package main

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// burnCommand is the argument that makes this program the busy Go program.
const burnCommand = "burn"

// burn keeps one CPU busy until stdin is closed, for example because the parent process exits. Its functions take busyShares of
// the CPU time.
func burn(stdin io.Reader) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, stdin)
		ended <- err
	}()

	// threadTime measures the current thread, so the goroutine must stay on it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		for i, job := range []func(){hashOrders, sortOrders, renderInvoices} {
			until := threadTime() + time.Duration(busyShares[i])*time.Millisecond
			for threadTime() < until {
				job()
			}
		}
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("waiting for the end of standard input: %w", err)
			}
			return nil
		default:
		}
	}
}

// threadTime returns the CPU time of the current thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(fmt.Sprintf("reading the thread's CPU time: %v", err))
	}
	return time.Duration(ts.Nano())
}

// sink prevents the compiler from removing unused work.
var sink uint64

//go:noinline
func hashOrders() {
	h := sink
	for i := range uint64(200_000) {
		h = (h ^ i) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	sink = h
}

var orders [2000]uint64

//go:noinline
func sortOrders() {
	// Insertion sort spends the time in this function itself.
	x := sink | 1
	for i := range orders {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		j := i
		for ; j > 0 && orders[j-1] > x; j-- {
			orders[j] = orders[j-1]
		}
		orders[j] = x
	}
	sink = x
}

var invoice [4096]byte

//go:noinline
func renderInvoices() {
	for round := range 50 {
		for i := range invoice {
			invoice[i] = byte('a' + (i*31+round+int(sink))%26)
		}
	}
	sink += uint64(invoice[len(invoice)-1])
}
