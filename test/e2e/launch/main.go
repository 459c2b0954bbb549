// launch keeps one CPU busy in prepare until it reads a byte from standard input. Then it executes the program in its arguments,
// with the same PID.
package main

import (
	"fmt"
	_ "net/http" // makes this program larger than the next one, so each address of the next program is an address of this one
	"os"
	"sync/atomic"
	"syscall"
)

func main() {
	var ready atomic.Bool
	go func() {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			fmt.Fprintln(os.Stderr, "launch: reading standard input:", err)
		}
		ready.Store(true)
	}()
	prepare(&ready)
	err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	fmt.Fprintln(os.Stderr, "launch: executing", os.Args[1], err)
	os.Exit(1)
}

//go:noinline
func prepare(ready *atomic.Bool) {
	for !ready.Load() {
	}
}
