// Like wait.c, in Go. time.Sleep would give the thread to another goroutine.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

var spent [3]time.Duration

//go:noinline
func wait(which int, d time.Duration) {
	begin := time.Now()
	for left := d; left > 0; left = d - time.Since(begin) { // the runtime's signals end a wait early
		t := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&t, nil)
	}
	spent[which] += time.Since(begin)
}

//go:noinline
func heavy() { wait(0, 180*time.Millisecond) }

//go:noinline
func light() { wait(1, 90*time.Millisecond) }

//go:noinline
func rest() { wait(2, 30*time.Millisecond) }

//go:noinline
func work() { heavy(); light(); rest() }

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	for range rounds {
		work()
	}
	fmt.Println(spent[0].Nanoseconds(), spent[1].Nanoseconds(), spent[2].Nanoseconds())
}
