// Like touch.c, in Go.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

var touched [3]int

//go:noinline
func touch(which, pages int) {
	fresh, err := syscall.Mmap(-1, 0, pages*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	for i := range pages {
		fresh[i*4096] = 1
	}
	if err := syscall.Munmap(fresh); err != nil {
		panic(err)
	}
	touched[which] += pages
}

//go:noinline
func heavy() { touch(0, 600) }

//go:noinline
func light() { touch(1, 300) }

//go:noinline
func rest() { touch(2, 100) }

//go:noinline
func work() { heavy(); light(); rest() }

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	for range rounds {
		work()
		time.Sleep(60 * time.Millisecond)
	}
	fmt.Println(touched[0], touched[1], touched[2])
}
