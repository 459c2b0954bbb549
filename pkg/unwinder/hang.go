package unwinder

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// reading is the last observation of a read: the process whose files the unwinder reads, and the reading thread's CPU time in
// nanoseconds.
type reading struct {
	pid, read  uint64 // read is the number of the read
	first, cpu uint64 // CPU time at the first and at the last check
	since      time.Time
}

// look returns how long the unwinder has waited for the files of r.pid, and the CPU time of this read. A thread without new CPU
// time waits for a file system, because a runnable thread gets some CPU time even on a busy machine. c contains the unwinder's
// counters.
func (r *reading) look(p *process, c [wire.CounterCount]uint64, now time.Time) (blocked, spent time.Duration) {
	pid, read := c[wire.CounterReading], c[wire.CounterReads]
	cpu, ok := threadCPU(p.cmd.Process.Pid, c[wire.CounterReaderThread])
	switch {
	case pid == 0 || !ok || pid != r.pid || read != r.read:
		*r = reading{pid, read, cpu, cpu, now}
	case cpu != r.cpu:
		r.cpu, r.since = cpu, now
	}
	return now.Sub(r.since), time.Duration(r.cpu - r.first)
}

// progress is the last progress of a process.
type progress struct {
	heard      time.Time // of its last output
	reading    reading
	taken      uint64 // the number of taken samples
	stuck      uint64 // the process of the sample that it works on, or 0
	stuckSince time.Time
}

// checkProgress ends the process if it makes no progress.
func (r *run) checkProgress() {
	if r.asked || r.why != "" {
		return
	}
	b, p, now := r.b, &r.progress, time.Now()
	c := r.p.count()
	blocked, spent := p.reading.look(r.p, c, now)
	if c[wire.CounterPID] == 0 || c[wire.CounterTaken] != p.taken || c[wire.CounterPID] != p.stuck {
		p.taken, p.stuck, p.stuckSince = c[wire.CounterTaken], c[wire.CounterPID], now
	}
	switch {
	// The profiler locks the process manager while it reads a process's memory for a sample. So reading files can wait for a
	// sample, which then began earlier.
	case blocked > b.unanswered && p.stuck != 0 && p.stuckSince.Before(p.reading.since):
		r.waited = true
		b.leaveAlone(p.stuck)
		r.destroy(fmt.Sprintf("processing a sample of process %d made no progress for %v: its file system might not respond, so its samples are skipped from now on", p.stuck, now.Sub(p.stuckSince).Round(b.unanswered/10)))
	case blocked > b.unanswered:
		b.leaveAlone(p.reading.pid)
		r.destroy(fmt.Sprintf("reading the files of process %d made no progress for %v: its file system might not respond, so its samples are skipped from now on", p.reading.pid, blocked.Round(b.unanswered/10)))
	case spent > b.silence:
		b.leaveAlone(p.reading.pid)
		r.destroy(fmt.Sprintf("reading the files of process %d took %v of CPU time: the files may be malicious, so its samples are skipped from now on", p.reading.pid, spent.Round(b.silence/6)))
	case now.Sub(p.heard) > b.silence:
		r.destroy(fmt.Sprintf("it wrote nothing for %v", b.silence))
	case p.stuck != 0 && now.Sub(p.stuckSince) > b.silence:
		r.destroy(fmt.Sprintf("it processed one sample of process %d for more than %v", p.stuck, b.silence))
	}
}

// threadCPU returns the CPU time of a thread in nanoseconds.
func threadCPU(pid int, thread uint64) (uint64, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, thread))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseUint(first, 10, 64)
	return n, err == nil
}

// maxHung is how many unwinders can hang before no other is started. Each keeps kernel memory, and its eBPF programs continue
// to sample.
const maxHung = 3

// stall reports whether so many unwinders hang that no other is started. If none has worked yet, it returns fatal. Otherwise it
// reports the error once, in the log and to waiting subscribers.
func (b *Broker) stall() (stalled bool, fatal error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hung = slices.DeleteFunc(b.hung, (*process).gone)
	if len(b.hung) < maxHung {
		b.stalled = nil
		return false, nil
	}
	err := fmt.Errorf("%d unwinders are blocked by file systems that do not respond, and keep their memory in the kernel. Whole stacks resume when one of them exits: find such file systems with mount | grep -e fuse -e nfs, and repair them or unmount them with umount -f", len(b.hung))
	if !b.hello {
		return false, err
	}
	if b.stalled == nil {
		b.stalled = err
		b.tell(err)
		defer b.log.Warnf("gadgets no longer get whole stacks: %v", err)
	}
	return true, nil
}
