// server keeps one CPU busy in 2,048 different stacks of about 30 frames, like a server that answers many kinds of requests. It
// runs until its standard input ends.
package main

import (
	"io"
	"os"
	"sync/atomic"
)

// branches are the calls at which a stack goes one of two ways: 2^11 stacks.
const branches = 11

// depth is the number of calls before them.
const depth = 16

func main() {
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	for n := uint(0); !ended.Load(); n++ {
		descend(n, depth)
	}
}

var sink uint64

//go:noinline
func descend(n, more uint) {
	if more == 0 {
		left(n, branches)
	} else {
		descend(n, more-1)
	}
	sink++ // the call is not the last thing that the function does
}

//go:noinline
func left(n, more uint) { branch(n, more) }

//go:noinline
func right(n, more uint) { branch(n, more) }

//go:noinline
func branch(n, more uint) {
	switch {
	case more == 0:
		work()
	case n&1 == 0:
		left(n>>1, more-1)
	default:
		right(n>>1, more-1)
	}
	sink++
}

//go:noinline
func work() {
	state := [8]uint64{sink}
	for i := range uint64(100_000) {
		state[i%8] = state[(i+1)%8]*31 + i
	}
	sink = state[0]
}
