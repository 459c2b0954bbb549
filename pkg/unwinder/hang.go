package unwinder

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// reading is what was seen at the last look: the process whose files the program reads, and the CPU time of the
// thread that reads them, in nanoseconds. A thread whose CPU time has not grown since waits for a file system: one
// that could run would get a little even on a busy machine.
type reading struct {
	pid   uint64
	cpu   uint64
	since time.Time
}

// blocked says for how long the program has waited for the files of the process r.pid. c are the program's counters.
func (r *reading) blocked(p *process, c [wire.CounterCount]uint64) time.Duration {
	pid := c[wire.CounterReading]
	cpu, ok := threadCPU(p.cmd.Process.Pid, c[wire.CounterReaderThread])
	if pid == 0 || !ok || pid != r.pid || cpu != r.cpu {
		*r = reading{pid, cpu, time.Now()}
	}
	return time.Since(r.since)
}

// threadCPU is the CPU time of a thread, in nanoseconds.
func threadCPU(pid int, thread uint64) (uint64, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, thread))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseUint(first, 10, 64)
	return n, err == nil
}

// maxHung is how many programs that cannot be ended are tolerated; at that number no other is started: each keeps its
// memory in the kernel, where its eBPF programs go on taking samples.
const maxHung = 3

// gone tells whether the program has ended.
func (p *process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// maxAvoided is how many processes are left alone, the latest.
const maxAvoided = 256

// avoid are processes whose files are not read any more, each as PID:START: a PID may come around again.
type avoid []string

// with returns the list with one more, if the process is still there.
func (a avoid) with(pid uint64) avoid {
	start, ok := startOf(pid)
	if !ok {
		return a
	}
	a = append(slices.Clone(a), fmt.Sprintf("%d:%d", pid, start))
	return a[max(0, len(a)-maxAvoided):]
}

// String returns the list as the program takes it.
func (a avoid) String() string { return strings.Join(a, ",") }

// startOf returns when a process began, in nanoseconds since boot.
func startOf(pid uint64) (uint64, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The second field is the name, in which anything may be; the start is the 22nd, in hundredths of a second.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return n * 1e7, err == nil
}
