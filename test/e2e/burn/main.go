// burn keeps one CPU busy until its standard input ends. It spends 60 % of its CPU time in heavy, 30 % in light and 10 % in rest,
// all called by work.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	var ended atomic.Bool
	go func() {
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "burn: reading standard input:", err)
		}
		ended.Store(true)
	}()

	// The clock below counts the time of a thread.
	runtime.LockOSThread()
	for !ended.Load() {
		work()
	}
}

//go:noinline
func work() {
	for until := threadTime() + 60*time.Millisecond; threadTime() < until; {
		heavy()
	}
	for until := threadTime() + 30*time.Millisecond; threadTime() < until; {
		light()
	}
	for until := threadTime() + 10*time.Millisecond; threadTime() < until; {
		rest()
	}
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(fmt.Sprintf("reading the thread's CPU time: %v", err))
	}
	return time.Duration(ts.Nano())
}

var sink uint64

// The functions below keep some state on the stack. Otherwise they would have no frame, and the kernel would not find their
// callers.

//go:noinline
func heavy() {
	state := [8]uint64{sink}
	for i := range uint64(300_000) {
		state[i%8] = state[(i+1)%8]*31 + i
	}
	sink = state[0]
}

//go:noinline
func light() {
	state := [8]uint64{sink}
	for i := range uint64(300_000) {
		state[i%8] = state[(i+1)%8]*37 ^ i
	}
	sink = state[0]
}

//go:noinline
func rest() {
	state := [8]uint64{sink}
	for i := range uint64(300_000) {
		state[i%8] = state[(i+1)%8]*41 - i
	}
	sink = state[0]
}
