// Command spans burns two thirds of its CPU time in the function checkout, and one third in search. Each has its own span. The
// command labels the goroutine with trace and span, like an instrumented service. It ends with its standard input.
package main

import (
	"context"
	"io"
	"os"
	"runtime/pprof"
)

var sink uint32 //nolint:unused // Storing results in it keeps the compiler from removing the work.

// Each function has its own loop. A shared function with the loop would have no frame, so the unwinder would miss its caller.

//go:noinline
func checkout() {
	x := uint32(1)
	for i := range uint32(2_000_000) {
		x = x*31 + i
	}
	sink = x
}

//go:noinline
func search() {
	x := uint32(1)
	for i := range uint32(1_000_000) {
		x = x*31 + i
	}
	sink = x
}

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
