package unwinder

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// maxAvoided is the number of the latest processes that are avoided.
const maxAvoided = 256

// avoid are processes whose files are no longer read, each as PID:START, because a PID may be reused. They are not identified by
// their executables. An attacker could copy his, or make a common one such as python3 look guilty.
type avoid []string

// with returns the list with one more.
func (a avoid) with(name string) avoid {
	a = append(slices.Clone(a), name)
	return a[max(0, len(a)-maxAvoided):]
}

// String returns the list as the program takes it.
func (a avoid) String() string { return strings.Join(a, ",") }

// leaveAlone avoids a process from now on, if it still runs.
func (b *Broker) leaveAlone(pid uint64) {
	if name, ok := nameOf(pid); ok {
		b.avoid = b.avoid.with(name)
	}
}

// blame notes the process that the program worked on when it ended, and logs it. One end can be chance: someone who ends the
// program from outside interrupts an arbitrary process. If it worked on the same process for the second time, that process is avoided.
func (b *Broker) blame(c [wire.CounterCount]uint64) (said string) {
	var met []string
	for _, at := range []struct {
		pid  uint64
		what string
	}{
		{c[wire.CounterReading], "it was reading the files of the process"},
		{c[wire.CounterPID], "it worked on a sample of the process"},
	} {
		if at.pid == 0 {
			continue
		}
		said += fmt.Sprintf("; %s %d", at.what, at.pid)
		name, ok := nameOf(at.pid)
		if !ok || slices.Contains(b.avoid, name) || slices.Contains(met, name) {
			continue
		}
		met = append(met, name)
		if !slices.Contains(b.suspects, name) {
			b.suspects = b.suspects.with(name)
			continue
		}
		b.avoid = b.avoid.with(name)
		said += ", as at an earlier exit: samples of that process are skipped from now on"
	}
	return said
}

// nameOf returns PID:START of a process that runs.
func nameOf(pid uint64) (string, bool) {
	start, err := procfs.Began("/proc", uint32(pid))
	return fmt.Sprintf("%d:%d", pid, start), err == nil
}
