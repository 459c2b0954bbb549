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

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// Reader decodes payloads in a process without rights: see unwinder.Reader, which implements it.
type Reader interface {
	// Ask returns what Encode has made of a payload of the process that has begun at start.
	Ask(ctx context.Context, pid uint32, start uint64, payload []byte) (answer []byte, cpu time.Duration, err error)
	Close()
}

// Process identifies a process by the fields of a row. Inode is that of its executable, 0 if that is not known.
type Process struct {
	PID   uint32
	Inode uint64
}

// Limits of a Resolver's memory. Within an hour an owner, such as a container, can have that many services with their versions and
// environments, and that many instances.
const (
	maxProcesses = 16384
	maxOwners    = 4096
	maxServices  = 16
	maxInstances = 64
	maxQueue     = 1024
)

// In seconds. A context is checked again after recheck. A process without one is after firstLook, and after twice as long each
// time up to lastLook. A context that was not used within unused is forgotten.
const (
	recheck   = 5
	firstLook = 1
	lastLook  = 60
	unused    = 600
	hour      = 3600
	never     = math.MaxInt64
)

const (
	// wait is for how long the memory of a process is waited for, and a Reader. maxStuck processes may keep it waiting at a time.
	wait     = 2 * time.Second
	maxStuck = 4
	// burst of CPU time may be used immediately, and a hundredth of one CPU later.
	burst, slowdown = time.Second, 100
)

// Stats counts the results of a Resolver.
type Stats struct {
	// Denied are processes with inaccessible memory. Refused are those of an owner with too many services or instances.
	Denied, Refused uint64
}

// Resolver remembers the contexts of processes. Lookup and Watch may be called by any number of goroutines.
type Resolver struct {
	proc   string
	reader Reader
	queue  chan *entry
	stop   func()
	done   chan struct{}
	clock  atomic.Int64 // seconds since it was made

	mu    sync.RWMutex
	known map[Process]*entry

	// The following fields belong to the goroutine of run.
	owners   map[string]*owner
	patience *patience.Runner

	denied, refused atomic.Uint64
}

// entry is the knowledge of a process.
type entry struct {
	process Process
	owner   string
	said    atomic.Pointer[Context] // nil: nothing
	due     atomic.Int64            // the time of the next read, by the clock; never while it is in the queue

	// The following fields belong to the goroutine of run.
	began, address, published uint64
	wait                      int64
	denied, refused           bool
}

// owner bounds the names that processes give themselves.
type owner struct{ services, instances map[uint64]bool }

// New returns a running Resolver of the processes below root/proc; root is empty or "/" outside containers. Close ends it.
func New(root string, reader Reader) *Resolver {
	ctx, stop := context.WithCancel(context.Background())
	r := &Resolver{
		proc: filepath.Join("/", root, "proc"), reader: reader, queue: make(chan *entry, maxQueue), stop: stop, done: make(chan struct{}),
		known: map[Process]*entry{}, owners: map[string]*owner{}, patience: patience.New(wait, maxStuck),
	}
	go r.run(ctx)
	return r
}

// Close ends the Resolver and its Reader. It waits for a read that is under way, some seconds at most.
func (r *Resolver) Close() {
	r.stop()
	<-r.done
	r.reader.Close()
}

// Stats returns the counters.
func (r *Resolver) Stats() Stats { return Stats{Denied: r.denied.Load(), Refused: r.refused.Load()} }

// Lookup returns a process's description of itself, as far as it is known, nil if there is none. With watched false nobody has
// called Watch for it. It does not wait and does not allocate.
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

// Watch makes a process known, so that its context is read some moments later. owner, such as the ID of its container, bounds the
// names that its processes can give themselves.
func (r *Resolver) Watch(p Process, owner string) {
	r.mu.Lock()
	if r.known[p] == nil {
		if len(r.known) >= maxProcesses {
			maps.DeleteFunc(r.known, func(_ Process, e *entry) bool { return e.said.Load() == nil })
			if len(r.known) > maxProcesses/2 {
				clear(r.known)
			}
		}
		e := &entry{process: p, owner: owner}
		e.due.Store(r.clock.Load())
		r.known[p] = e
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
	defer close(r.done)
	tick, sweeps, renewals := time.NewTicker(time.Second), time.NewTicker(unused*time.Second), time.NewTicker(hour*time.Second)
	defer tick.Stop()
	defer sweeps.Stop()
	defer renewals.Stop()
	began := time.Now()
	allowance := patience.Allowance{Burst: burst, Slowdown: slowdown}
	for ctx.Err() == nil {
		now := int64(time.Since(began) / time.Second)
		r.clock.Store(now)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-sweeps.C:
			r.sweep(now)
		case <-renewals.C:
			clear(r.owners)
		case e := <-r.queue:
			used, next := r.look(ctx, e)
			e.due.Store(now + next)
			allowance.Use(used)
			allowance.Rest(ctx)
		}
	}
}

// found is the result of reading a process's memory.
type found struct {
	began, address, published uint64
	payload                   []byte
	err                       error
}

// look reads the context of a process, and returns the CPU time that this has taken and in how many seconds to do so again.
func (r *Resolver) look(ctx context.Context, e *entry) (used time.Duration, next int64) {
	f := new(found)
	known := found{began: e.began, address: e.address, published: e.published}
	used, err := r.patience.Do(ctx, func() { r.readMemory(f, e.process, known) }, func() func() { return func() {} })
	switch {
	case errors.Is(err, patience.ErrStuck):
		return used, hour
	case err != nil:
		return used, lastLook
	}
	if f.began != 0 && f.began != e.began { // a new process, or another with its PID
		e.said.Store(nil)
		e.began, e.address, e.published, e.wait = f.began, 0, 0, 0
	}
	switch {
	case f.err == nil:
		e.address = f.address
		if f.published == e.published {
			return used, recheck
		}
		asking, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		answer, cpu, err := r.reader.Ask(asking, e.process.PID, e.began, f.payload)
		used += cpu
		if err == nil {
			e.published, e.wait = f.published, 0
			e.said.Store(r.admit(e, parse(answer)))
		}
		return used, recheck
	case errors.Is(f.err, errNone):
		e.said.Store(nil)
		e.address, e.published = 0, 0
	case errors.Is(f.err, os.ErrPermission):
		if !e.denied {
			e.denied = true
			r.denied.Add(1)
		}
	case e.said.Load() != nil: // it has ended, and these are its last rows; or it is changing its context
		return used, recheck
	}
	e.wait = min(max(2*e.wait, firstLook), lastLook)
	return used, e.wait
}

// readMemory copies the context of a process, unless it is known already.
func (r *Resolver) readMemory(f *found, of Process, known found) {
	p, err := openProcess(r.proc, of.PID, of.Inode)
	if err != nil {
		f.err = err
		return
	}
	defer p.close()
	if f.began = p.began; f.began != known.began {
		known = found{}
	}
	if known.address != 0 {
		f.address = known.address
		if f.payload, f.published, f.err = p.context(known.address, known.published); !errors.Is(f.err, errNone) {
			return
		}
	}
	places, err := p.find()
	f.err = err
	for _, at := range places {
		f.address = at
		if f.payload, f.published, f.err = p.context(at, 0); !errors.Is(f.err, errNone) {
			return
		}
	}
}

// admit returns the part of a context that its owner may have: all of it, or no instance, or nothing, which is nil.
func (r *Resolver) admit(e *entry, c *Context) *Context {
	if c == nil {
		return nil
	}
	o := r.owners[e.owner]
	if o == nil {
		if len(r.owners) >= maxOwners {
			clear(r.owners)
		}
		o = &owner{map[uint64]bool{}, map[uint64]bool{}}
		r.owners[e.owner] = o
	}
	service := *c
	service.Instance = ""
	admitted := keyed(service)
	switch {
	case !take(o.services, admitted.Key, maxServices):
		admitted = nil
	case c.Instance == "" || take(o.instances, c.Key, maxInstances):
		return c
	}
	if !e.refused {
		e.refused = true
		r.refused.Add(1)
	}
	return admitted
}

// take adds a key to a set that has at most so many, and reports whether the set has it then.
func take(set map[uint64]bool, key uint64, most int) bool {
	if len(set) < most {
		set[key] = true
	}
	return set[key]
}
