package unwinder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// checkAfter is how long a run lasts before it is checked for languages without frames.
	checkAfter = time.Minute
	// enough is the number of samples from which a complete lack of a language's frames is statistically significant.
	enough = 20
)

// unseen returns a line for each requested language that has running interpreters, but no frame in any sample. Interpreters are
// recognized by the names of executables and libraries.
func unseen(before, now wire.Stats, asked unwinder.Settings) []string {
	var lines []string
	for t, names := range wire.FrameNames {
		if names.Program == "" || !asked.Unwinds(wire.FrameType(t)) {
			continue
		}
		l, b := now.Languages[t], before.Languages[t]
		if expected := l.Expected - b.Expected; expected >= enough && l.Missing-b.Missing == expected {
			lines = append(lines, fmt.Sprintf("%d samples of processes that run %s have no frames of that language, so functions are missing. %s",
				expected, names.Title, unseenWhy(wire.FrameType(t))))
		}
	}
	return lines
}

// unseenWhy returns the possible reason why a language's functions are missing.
func unseenWhy(t wire.FrameType) string {
	switch t {
	case wire.FrameBEAM:
		return "The unwinder supports OTP 27 and 28, if beam.smp has a symbol table"
	case wire.FrameDotnet:
		return "The unwinder supports .NET 6 to 10, if the runtime's folder is named after its version. It does not support self-contained programs"
	}
	return "The unwinder might not support the runtime's version, or the runtime's library has no symbols"
}

// reasons lists why stacks are incomplete, most frequent reason first.
func reasons(before, now unwinder.Totals) string {
	n, sum := map[uint32]uint64{}, uint64(0)
	for r, count := range now.Aborts {
		if count -= before.Aborts[r]; count > 0 {
			n[r] = count
			sum += count
		}
	}
	if sum == 0 {
		return "all stacks are complete"
	}
	sorted := slices.SortedFunc(maps.Keys(n), func(a, b uint32) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	var most []string
	for _, r := range sorted[:min(len(sorted), 5)] {
		most = append(most, fmt.Sprintf("%s (%d)", unwinder.Reason(r), n[r]))
	}
	return fmt.Sprintf("incomplete stacks: %d, most frequent reasons: %s", sum, strings.Join(most, ", "))
}

// work describes the unwinder's work for all gadgets, as the difference between two totals.
func work(before, now unwinder.Totals) string {
	var languages []string
	for t := range now.Languages {
		if n := now.Languages[t].Frames - before.Languages[t].Frames; n > 0 {
			languages = append(languages, fmt.Sprintf("%s %d", wire.FrameNames[t].Title, n))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d stacks", now.Taken-before.Taken)
	if len(languages) > 0 {
		fmt.Fprintf(&b, ", with frames of: %s", strings.Join(languages, ", "))
	}
	fmt.Fprintf(&b, "; %s", reasons(before, now))
	if n := now.Idle - before.Idle; n > 0 {
		fmt.Fprintf(&b, "; stacks without a frame: %d", n)
	}
	if n := now.NoProcess - before.NoProcess; n > 0 {
		fmt.Fprintf(&b, "; stacks of unknown processes: %d", n)
	}
	fmt.Fprintf(&b, "; lost: %d in the unwinder, %d in the kernel, %d in %d restarts (%.1f s without an unwinder); the unwinder used up to %d MiB of memory and %d MiB of kernel memory",
		now.Full+now.Failed-before.Full-before.Failed, now.KernelLost-before.KernelLost, now.Crashed-before.Crashed, now.Restarts-before.Restarts, (now.Away - before.Away).Seconds(),
		now.Memory>>20, now.KernelMemory>>20)
	return b.String()
}
