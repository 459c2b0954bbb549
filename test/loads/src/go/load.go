// Command load burns 60 % of its CPU time in heavy, 30 % in light and 10 % in rest. Each works until it has its share.
package main

import (
	"fmt"
	"syscall"
	"unsafe"
)

const processCPUTime = 2

func cpu() int64 {
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, processCPUTime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(errno)
	}
	return t.Nano()
}

type part struct{ used, due int64 }

var sink uint32 //nolint:unused // What is stored in it is work that the compiler may not leave out.

//go:noinline
func heavy(p *part) {
	for p.due += 6000000; p.used < p.due; {
		start := cpu()
		x := uint32(1)
		for i := range uint32(100000) {
			x = (x*31 + i) & 0xffffff
		}
		sink = x
		p.used += cpu() - start
	}
}

//go:noinline
func light(p *part) {
	for p.due += 3000000; p.used < p.due; {
		start := cpu()
		x := uint32(1)
		for i := range uint32(100000) {
			x = (x*31 + i) & 0xffffff
		}
		sink = x
		p.used += cpu() - start
	}
}

//go:noinline
func rest(p *part) {
	for p.due += 1000000; p.used < p.due; {
		start := cpu()
		x := uint32(1)
		for i := range uint32(100000) {
			x = (x*31 + i) & 0xffffff
		}
		sink = x
		p.used += cpu() - start
	}
}

//go:noinline
func work(p *[3]part) {
	heavy(&p[0])
	light(&p[1])
	rest(&p[2])
}

//go:noinline
func step(p *[3]part) {
	work(p)
}

//go:noinline
func run(p *[3]part) {
	step(p)
	fmt.Println("ready")
	for {
		step(p)
	}
}

func main() {
	run(&[3]part{})
}
