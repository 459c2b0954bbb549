package procmap

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// The kernel reports processes through perf events. A dummy event on each CPU counts nothing. Its ring receives a record for
// each executable mapping, execve, fork and exit on that CPU.

const (
	// ringPages is the size of a CPU's ring: 128 kB, about a thousand events between two reads.
	ringPages = 32
	// readEvery is the time between two reads of the rings.
	readEvery = 50 * time.Millisecond
	// settle is the time that a record can take to arrive in its ring, in nanoseconds.
	settle = 2e6
	// lookAtCPUs is the time between two checks of the list of online CPUs.
	lookAtCPUs = 2 * time.Second
	// maxEvents bounds the pending events. Further events are lost.
	maxEvents = 1 << 16
)

// watcher holds the rings of all CPUs. It belongs to one goroutine.
type watcher struct {
	rings   []ring
	online  []int   // the online CPUs when it was made
	pending []event // younger than settle, because an earlier event may still arrive
	buf     []byte
}

type ring struct {
	fd     int
	memory []byte
}

// watch requests the events from the kernel. It returns nil if they are not available. Outside the first PID namespace, the
// PIDs would differ. In other cases, a capability is possibly missing.
func watch() *watcher {
	if !procfs.SharesPIDs() {
		return nil
	}
	w := &watcher{online: onlineCPUs()}
	for _, cpu := range w.online {
		r, err := openRing(cpu)
		if errors.Is(err, unix.ENODEV) { // the CPU went offline
			continue
		}
		if err != nil {
			w.close()
			return nil
		}
		w.rings = append(w.rings, r)
	}
	if len(w.rings) == 0 {
		return nil
	}
	return w
}

// onlineCPUs returns the numbers of the online CPUs.
func onlineCPUs() []int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil
	}
	return parseCPUs(strings.TrimSpace(string(text)))
}

// parseCPUs parses a list like "0-3,8".
func parseCPUs(list string) []int {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.ParseUint(high, 10, 16); err != nil {
				continue
			}
		}
		for ; a <= b; a++ {
			cpus = append(cpus, int(a))
		}
	}
	return cpus
}

func openRing(cpu int) (ring, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec | unix.PerfBitTask |
			unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitWatermark | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME,
		Clockid:     unix.CLOCK_BOOTTIME,
		Wakeup:      1 << 30, // no thread waits for the event
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return ring{}, err
	}
	memory, err := unix.Mmap(fd, 0, (1+ringPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return ring{}, err
	}
	return ring{fd, memory}, nil
}

func (w *watcher) close() {
	for _, r := range w.rings {
		_ = unix.Munmap(r.memory) // cannot fail: memory is what Mmap returned
		unix.Close(r.fd)
	}
	w.rings = nil
}

// outdated reports whether the online CPUs have changed since w was created. w misses events on a CPU that has come online
// since then.
func (w *watcher) outdated() bool {
	online := onlineCPUs()
	return len(online) > 0 && !slices.Equal(online, w.online)
}

// read returns the number of lost events, and the events up to the time until, sorted by time. until is the current time minus
// settle. Later events stay pending.
func (w *watcher) read() (until uint64, events []event, lost uint64) {
	until = procfs.SinceBoot() - settle
	for _, r := range w.rings {
		lost += w.readRing(r)
	}
	slices.SortStableFunc(w.pending, func(a, b event) int { return cmp.Compare(a.time, b.time) })
	n := sort.Search(len(w.pending), func(i int) bool { return w.pending[i].time > until })
	events = w.pending[:n:n]
	w.pending = slices.Clone(w.pending[n:])
	return until, events, lost
}

// readRing moves a ring's content into w.pending. The kernel writes the head, and readRing writes the tail. Both count bytes
// and never decrease.
func (w *watcher) readRing(r ring) (lost uint64) {
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.memory[0]))
	head := atomic.LoadUint64(&page.Data_head)
	tail := page.Data_tail
	data := r.memory[os.Getpagesize():]
	size := uint64(len(data))
	for tail+headerSize <= head {
		at := tail % size
		n := uint64(binary.NativeEndian.Uint16(data[at+6:])) // records are aligned to eight bytes
		if n < headerSize || tail+n > head {
			tail = head // not a valid record: skip everything up to head
			break
		}
		record := data[at:min(at+n, size)]
		if uint64(len(record)) < n {
			w.buf = append(append(w.buf[:0], record...), data[:n-uint64(len(record))]...)
			record = w.buf
		}
		if e, ok := parseRecord(record); ok {
			switch {
			case e.kind == recordLost:
				lost += e.lost
			case len(w.pending) < maxEvents:
				w.pending = append(w.pending, e)
			default:
				lost++
			}
		}
		tail += n
	}
	atomic.StoreUint64(&page.Data_tail, tail)
	return lost
}

// follow adds the kernel's events to the history until the context ends. Then it closes w.
func (r *Resolver) follow(ctx context.Context, w *watcher) {
	defer func() { w.close() }() // renew can replace w
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		until, events, lost := w.read()
		r.setStats(events)
		r.take(until, events, lost)
		if time.Since(looked) >= lookAtCPUs {
			looked = time.Now()
			w = r.renew(w)
		}
	}
}

// renew replaces an outdated watcher. Events of unwatched CPUs are missing, so all lives that have not ended are forgotten. If
// no new watcher is available, the old one stays, and the lives are forgotten at each check.
func (r *Resolver) renew(w *watcher) *watcher {
	if !w.outdated() {
		return w
	}
	next := watch()
	if next != nil {
		until, events, lost := w.read()
		r.setStats(events)
		r.take(until, events, lost)
		w.close()
		w = next
	}
	r.mu.Lock()
	r.history.forgetAlive()
	r.mu.Unlock()
	return w
}

// keepSingle is how long a file system counts as having a single device number, in nanoseconds. Later, the number can belong to
// another file system.
const keepSingle = 10e9

// setStats completes the keys of mapped files. It does not change keys of files that only exited processes had mapped. Only
// follow calls it.
func (r *Resolver) setStats(events []event) {
	now := procfs.SinceBoot()
	for i := range events {
		e := &events[i]
		if e.kind != recordMmap2 || !e.file.ambiguous() || now < r.single[e.file.dev] {
			continue
		}
		if e.file.setStat(unix.AT_FDCWD, fmt.Sprintf("%s/%d/%s", r.proc, e.pid, mapLink(e.start, e.end))) {
			if len(r.single) >= maxVerdicts {
				clear(r.single)
			}
			r.single[e.file.dev] = now + keepSingle
		}
	}
}

// take updates the history with events up to until. It releases r.mu after each atOnce events, so other goroutines do not wait
// for all events.
func (r *Resolver) take(until uint64, events []event, lost uint64) {
	const atOnce = 256
	for first := true; first || len(events) > 0; first = false {
		n := min(len(events), atOnce)
		r.mu.Lock()
		for i := range events[:n] {
			r.happened(&events[i])
		}
		r.bound()
		if events = events[n:]; len(events) == 0 {
			if lost > 0 { // the lost events may belong to any process
				r.history.forgetAlive()
			}
			r.history.until = until
			if r.waiting || n > 0 || lost > 0 {
				r.waiting = false
				r.tell()
			}
		}
		r.mu.Unlock()
	}
}

func (r *Resolver) happened(e *event) {
	switch e.kind {
	case recordFork:
		r.history.fork(e.pid, e.parent, e.time)
	case recordExit:
		r.history.end(e.pid, e.time)
	case recordComm:
		r.history.exec(e.pid, e.time)
	case recordMmap2:
		f := r.intern(e.file, holder{e.pid, e.start, e.end, e.time})
		r.history.mmap(e.pid, mapped{e.start, e.end, e.offset, f})
		if f.checked == 0 && !f.queued { // identify it now, because it may disappear before the first request
			r.check(f)
		}
	}
}
