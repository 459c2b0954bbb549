// Command spans burns two thirds of its CPU time in the function checkout, one third in the function search, each in a span of
// its own as an instrumented service would: it labels the goroutine with trace and span. It ends with its standard input.
package main

import (
	"context"
	"io"
	"os"
	"runtime/pprof"
)

var sink uint32 //nolint:unused // What is stored in it is work that the compiler may not leave out.

//go:noinline
func burn(n int) {
	x := uint32(1)
	for i := range n * 100_000 {
		x = x*31 + uint32(i)
	}
	sink = x
}

//go:noinline
func checkout() { burn(20) }

//go:noinline
func search() { burn(10) }

func main() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		for _, span := range []struct {
			id   string
			work func()
		}{{os.Args[2], checkout}, {os.Args[3], search}} {
			pprof.Do(context.Background(), pprof.Labels("trace_id", os.Args[1], "span_id", span.id), func(context.Context) { span.work() })
		}
	}
}
