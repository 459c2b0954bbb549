package unwinder

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// maxAvoided limits the number of avoided processes. The newest are kept.
const maxAvoided = 256

// avoid lists processes whose files are no longer read, each as PID:START, because PIDs are reused. Executables do not identify
// processes. An attacker could copy an executable, or make a common one such as python3 suspicious.
type avoid []string

// with returns the list with name added.
func (a avoid) with(name string) avoid {
	a = append(slices.Clone(a), name)
	return a[max(0, len(a)-maxAvoided):]
}

// String returns the list in the form of the command line.
func (a avoid) String() string { return strings.Join(a, ",") }

// leaveAlone adds a running process to the avoided ones.
func (b *Broker) leaveAlone(pid uint64) {
	if name, ok := nameOf(pid); ok {
		b.avoid = b.avoid.with(name)
	}
}

// blame records the process that the unwinder worked on when it exited, and describes it for the log. One exit can be chance,
// because a person who kills the unwinder interrupts work on an arbitrary process. After a second exit on the same process,
// that process is avoided.
func (b *Broker) blame(c [wire.CounterCount]uint64) (said string) {
	var met []string
	for _, at := range []struct {
		pid  uint64
		what string
	}{
		{c[wire.CounterReading], "it was reading files of process"},
		{c[wire.CounterPID], "it was processing a sample of process"},
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
		said += ", as before an earlier restart, so samples of this process are skipped from now on"
	}
	return said
}

// nameOf returns PID:START of a running process.
func nameOf(pid uint64) (string, bool) {
	start, err := procfs.Began("/proc", uint32(pid))
	return fmt.Sprintf("%d:%d", pid, start), err == nil
}
