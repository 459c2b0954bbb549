package proccontext

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// Reader decodes payloads in an unprivileged process. unwinder.Reader implements it.
type Reader interface {
	// Ask returns the result of Encode for a payload. The payload comes from the process with this PID and start time.
	Ask(ctx context.Context, pid uint32, start uint64, payload []byte) (answer []byte, cpu time.Duration, err error)
	Close()
}

// Process identifies a process by the fields of a row. Inode is the executable's inode, or 0 if that is unknown.
type Process struct {
	PID   uint32
	Inode uint64
}

// These limit a Resolver's memory. Within an hour, an owner, for example a container, can have this many services (with their
// versions and environments), and this many instances.
const (
	maxProcesses = 16384
	maxOwners    = 4096
	maxServices  = 16
	maxInstances = 64
	maxQueue     = 1024
)

// These times are in seconds. A context is checked again after recheck. A process without a context is checked again after
// firstLook. This delay doubles after each check, up to lastLook. A context that is not used for the time unused is forgotten.
const (
	recheck   = 5
	firstLook = 1
	lastLook  = 60
	unused    = 600
	hour      = 3600
	never     = math.MaxInt64
)

const (
	// wait limits how long it may take to read a process's memory, and how long a Reader may take to decode it. At most maxStuck
	// processes can hang at the same time.
	wait     = 2 * time.Second
	maxStuck = 4
	// burst is the CPU time that can be used immediately. After that, a hundredth of one CPU can be used.
	burst, slowdown = time.Second, 100
)

// Resolver caches the contexts of processes. Lookup and Watch are safe for concurrent use.
type Resolver struct {
	// Denied counts processes whose memory is inaccessible. Refused counts processes of owners with too many services or
	// instances.
	Denied, Refused atomic.Uint64

	proc   string
	reader Reader
	queue  chan *entry
	stop   func()
	runs   sync.WaitGroup
	clock  atomic.Int64 // seconds since the Resolver was created

	mu    sync.RWMutex
	known map[Process]*entry

	// Only the goroutine of run uses these.
	services, instances *bounded.Sets[uint64] // the keys of contexts
	patience            *patience.Runner
}

// entry is a known process.
type entry struct {
	process Process
	owner   string
	said    atomic.Pointer[Context] // nil if it publishes none
	due     atomic.Int64            // the clock's value at the next read; never while the entry is queued

	// Only the goroutine of run uses these.
	place
	wait            int64
	denied, refused sync.Once // the process was counted
}

// place is the start of a process, and the address and the time of its context. Unknown fields are 0.
type place struct{ began, address, published uint64 }

// New returns a running Resolver for the processes below root/proc. root is "" or "/" outside containers. Close ends it.
func New(root string, reader Reader) *Resolver {
	ctx, stop := context.WithCancel(context.Background())
	r := &Resolver{
		proc: filepath.Join("/", root, "proc"), reader: reader, queue: make(chan *entry, maxQueue), stop: stop,
		known: map[Process]*entry{}, patience: patience.New(wait, maxStuck),
		services: bounded.New[uint64](maxOwners, maxServices), instances: bounded.New[uint64](maxOwners, maxInstances),
	}
	r.runs.Go(func() { r.run(ctx) })
	return r
}

// Close ends the Resolver and its Reader. It waits a few seconds at most for a read in progress.
func (r *Resolver) Close() {
	r.stop()
	r.runs.Wait()
	r.reader.Close()
}

// Lookup returns the known context of a process, or nil. watched is false if nobody has called Watch for the process. Lookup
// neither waits nor allocates.
func (r *Resolver) Lookup(p Process) (c *Context, watched bool) {
	r.mu.RLock()
	e := r.known[p]
	r.mu.RUnlock()
	if e == nil {
		return nil, false
	}
	if due := e.due.Load(); due <= r.clock.Load() && e.due.CompareAndSwap(due, never) {
		select {
		case r.queue <- e:
		default:
			e.due.Store(due)
		}
	}
	return e.said.Load(), true
}

// Watch adds a process. The Resolver reads its context some moments later. owner is, for example, the ID of the process's
// container. The number of names that an owner's processes can choose is limited.
func (r *Resolver) Watch(p Process, owner string) {
	r.mu.Lock()
	if r.known[p] == nil {
		if len(r.known) >= maxProcesses {
			maps.DeleteFunc(r.known, func(_ Process, e *entry) bool { return e.said.Load() == nil })
			if len(r.known) > maxProcesses/2 {
				clear(r.known)
			}
		}
		r.known[p] = &entry{process: p, owner: owner}
	}
	r.mu.Unlock()
	r.Lookup(p)
}

// sweep forgets unused processes.
func (r *Resolver) sweep(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(_ Process, e *entry) bool { return e.due.Load() < now-unused })
}

// run reads the requested contexts until ctx ends.
func (r *Resolver) run(ctx context.Context) {
	tick, sweeps, renewals := time.Tick(time.Second), time.Tick(unused*time.Second), time.Tick(hour*time.Second)
	began := time.Now()
	allowance := patience.Allowance{Burst: burst, Slowdown: slowdown}
	for ctx.Err() == nil {
		now := int64(time.Since(began) / time.Second)
		r.clock.Store(now)
		select {
		case <-ctx.Done():
		case <-tick:
		case <-sweeps:
			r.sweep(now)
		case <-renewals:
			r.services.Clear()
			r.instances.Clear()
		case e := <-r.queue:
			used, next := r.look(ctx, e)
			e.due.Store(now + next)
			allowance.Use(used)
			allowance.Rest(ctx)
		}
	}
}

// look reads a process's context. It returns the used CPU time, and the number of seconds until the next read.
func (r *Resolver) look(ctx context.Context, e *entry) (used time.Duration, next int64) {
	p, known := new(process), e.place
	used, err := r.patience.Do(ctx, func() { p.err = p.find(r.proc, e.process, known) }, func() func() { return func() {} })
	switch {
	case errors.Is(err, patience.ErrStuck):
		return used, hour
	case err != nil:
		return used, lastLook
	}
	if p.began != 0 && p.began != e.began { // a new process, or another process with its PID
		e.said.Store(nil)
		e.place, e.wait = place{began: p.began}, 0
	}
	switch {
	case p.err == nil:
		e.address = p.address
		if p.published == e.published {
			return used, recheck
		}
		asking, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		answer, cpu, err := r.reader.Ask(asking, e.process.PID, e.began, p.payload)
		used += cpu
		if err == nil {
			e.place, e.wait = p.place, 0
			e.said.Store(r.admit(e, parse(answer)))
		}
		return used, recheck
	case errors.Is(p.err, errNone):
		e.said.Store(nil)
		e.place = place{began: e.began}
	case errors.Is(p.err, os.ErrPermission):
		e.denied.Do(func() { r.Denied.Add(1) })
	case e.said.Load() != nil: // the process has exited and these are its last rows, or its context is being changed
		return used, recheck
	}
	e.wait = min(max(2*e.wait, firstLook), lastLook)
	return used, e.wait
}

// admit returns the part of a context that its owner is allowed to add. That is the whole context, the context without the
// instance, or nil.
func (r *Resolver) admit(e *entry, c *Context) *Context {
	if c == nil {
		return nil
	}
	service := *c
	service.Instance = ""
	admitted := keyed(service)
	switch {
	case !r.services.Add(e.owner, admitted.Key):
		admitted = nil
	case c.Instance == "" || r.instances.Add(e.owner, c.Key):
		return c
	}
	e.refused.Do(func() { r.Refused.Add(1) })
	return admitted
}
