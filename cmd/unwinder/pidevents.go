package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.opentelemetry.io/ebpf-profiler/processmanager"
	"go.opentelemetry.io/ebpf-profiler/tracer"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// pidCleanupInterval is the time between two removals of exited processes from the profiler.
const pidCleanupInterval = 5 * time.Minute

// The first pass checks every passTick whether there is something to read. It ends after passQuiet consecutive checks without
// result, or after passLimit.
const (
	passTick  = 20 * time.Millisecond
	passQuiet = 15
	passLimit = 15 * time.Second
)

// processReader reads the files of each process that the kernel reports, like Tracer.StartPIDEventProcessor. It survives
// hostile files. They are parsed in mapped memory, and can be truncated at the same time. After a panic or a fault, only the
// affected process lacks unwind information. processReader also publishes the PID that it is reading. A file system that does
// not respond blocks this goroutine forever. Only the parent process can detect this and kill the program.
type processReader struct {
	log      *slog.Logger
	counters *counters
	avoid    avoided
	brought  *brought
	events   chan libpf.PIDTID
	wanted   <-chan uint32 // requested processes
	manager  *processmanager.ProcessManager
	survived uint64
}

// newProcessReader reads unexported members of a tracer through reflection.
func newProcessReader(t *tracer.Tracer, c config, s *sampler, logger *slog.Logger) (*processReader, error) {
	events, err := private[chan libpf.PIDTID](t, "pidEvents")
	if err != nil {
		return nil, err
	}
	manager, err := private[*processmanager.ProcessManager](t, "processManager")
	if err != nil {
		return nil, err
	}
	return &processReader{log: logger, counters: s.counters, avoid: c.avoid, wanted: c.wanted, brought: &s.brought, events: *events, manager: *manager}, nil
}

// private returns an unexported member of a struct.
func private[M, S any](s *S, name string) (*M, error) {
	f := reflect.ValueOf(s).Elem().FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[M]() {
		return nil, fmt.Errorf("this version of the profiler has no member %s.%s of the type %v", reflect.TypeFor[S](), name, reflect.TypeFor[M]())
	}
	return (*M)(unsafe.Pointer(f.UnsafeAddr())), nil
}

// run reads processes until ctx ends.
func (r *processReader) run(ctx context.Context) {
	// The starter monitors the progress of this thread.
	runtime.LockOSThread()
	debug.SetPanicOnFault(true)
	r.counters[wire.CounterReaderThread].Store(uint64(unix.Gettid()))
	cleanup := time.NewTicker(pidCleanupInterval)
	defer cleanup.Stop()
	for {
		var event libpf.PIDTID
		select {
		case event = <-r.events:
		case pid := <-r.wanted:
			event = libpf.PIDTID(uint64(pid)<<32 | uint64(pid))
		case <-cleanup.C:
			_ = surviving(r.manager.CleanupPIDs)
			continue
		case <-ctx.Done():
			return
		}
		pid := event.PID()
		if r.avoid.is(uint32(pid)) {
			continue
		}
		r.counters[wire.CounterReads].Add(1)
		r.counters[wire.CounterReading].Store(uint64(pid))
		err := surviving(func() { r.manager.SynchronizeProcess(watch(process.New(pid, event.TID()), r.brought)) })
		r.counters[wire.CounterReading].Store(0)
		if err == nil {
			continue
		}
		// Log only at powers of two, because thousands of such programs would fill the log.
		if r.survived++; r.survived&(r.survived-1) == 0 {
			r.log.Warn("parsing the files of a process failed, so its stacks remain incomplete", "pid", pid, "panic", err, "so far", r.survived)
		}
	}
}

// idle reports whether all reported processes have been read.
func (r *processReader) idle() bool {
	return r.counters[wire.CounterReading].Load() == 0 && len(r.events) == 0
}

// firstPass waits at the start until the files of the busiest programs have been read, because these programs have no samples
// before that. It returns when there has been nothing to read for a while, or after passLimit.
func (r *processReader) firstPass(ctx context.Context) {
	tick := time.NewTicker(passTick)
	defer tick.Stop()
	for begin, quiet := time.Now(), 0; quiet < passQuiet && time.Since(begin) < passLimit; quiet++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !r.idle() {
			quiet = 0
		}
	}
}

// surviving calls f and returns its panic, or nil.
func surviving(f func()) (panicked any) {
	defer func() { panicked = recover() }()
	f()
	return nil
}

// avoided lists the processes that must not be read. It maps their PIDs to start times.
type avoided map[uint32]uint64

// parseAvoided parses the starter's comma-separated list of PID:START.
func parseAvoided(list string) avoided {
	a := avoided{}
	for text := range strings.SplitSeq(list, ",") {
		var pid uint32
		var start uint64
		if _, err := fmt.Sscanf(text, "%d:%d", &pid, &start); err == nil { // an empty list has no PID
			a[pid] = start
		}
	}
	return a
}

// is reports whether a PID belongs to an avoided process.
func (a avoided) is(pid uint32) bool {
	start, there := a[pid]
	if !there {
		return false
	}
	now, _, err := readProc(pid)
	if errors.Is(err, os.ErrNotExist) || err == nil && !procfs.SameStart(now, start) {
		delete(a, pid)
		return false
	}
	return true
}
