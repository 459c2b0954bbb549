package main

import (
	"context"
	"log/slog"
	"runtime/debug"
	_ "unsafe" // go:linkname

	"go.opentelemetry.io/ebpf-profiler/tracer"
)

// processPIDEvents reads the files of each process that the kernel reports, until ctx ends. It is what
// Tracer.StartPIDEventProcessor starts as a goroutine of its own, in which nobody could recover.
//
//go:linkname processPIDEvents go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).processPIDEvents
func processPIDEvents(t *tracer.Tracer, ctx context.Context) //nolint:revive // The receiver comes first.

// readProcesses does what Tracer.StartPIDEventProcessor does, and survives what is in the files: they are the
// programs' own, parsed through mappings, and may be made to mislead or be truncated meanwhile. A panic or a fault
// costs that process its unwind information.
func readProcesses(ctx context.Context, t *tracer.Tracer, logger *slog.Logger) {
	go func() {
		debug.SetPanicOnFault(true)
		for survived := uint64(0); ctx.Err() == nil; {
			err := surviving(func() { processPIDEvents(t, ctx) })
			if err == nil {
				continue
			}
			// Whoever starts such programs by the thousand does not fill the log.
			if survived++; survived&(survived-1) == 0 {
				logger.Warn("a process's files could not be parsed, its stacks stay incomplete", "panic", err, "so far", survived)
			}
		}
	}()
}

// surviving calls f and returns what it panicked with, nil if it did not.
func surviving(f func()) (panicked any) {
	defer func() { panicked = recover() }()
	f()
	return nil
}
