package captures

import "fmt"

// counts accounts for all captures of a run: read = added + inner + other + bad.
type counts struct {
	read, added, inner, other, bad             uint64
	whole, byFramePointers, none               uint64 // added, split by the kind of stack
	late, lateValue                            uint64 // the unwinder's stack did not arrive
	lost, lostWeight, lostEvents, events, full uint64 // counted by the gadget's programs
}

// kernelCounts mirrors struct capture_counts in gadgets/include/capture.h.
type kernelCounts struct{ Events, Lost, LostWeight, LostEvents, Full uint64 }

// count reads the counts that the gadget's programs keep.
func (i *instance) count() {
	var perCPU []kernelCounts
	if err := i.maps.counts.Lookup(uint32(0), &perCPU); err != nil {
		i.warn(fmt.Errorf("reading the gadget's counters: %w", err))
		return
	}
	weight, events := i.counts.lostWeight, i.counts.lostEvents
	i.counts.events, i.counts.lost, i.counts.lostWeight, i.counts.lostEvents, i.counts.full = 0, 0, 0, 0, 0
	for _, c := range perCPU {
		i.counts.events += c.Events
		i.counts.lost += c.Lost
		i.counts.lostWeight += c.LostWeight
		i.counts.lostEvents += c.LostEvents
		i.counts.full += c.Full
	}
	i.stacks.Count(i.counts.late, i.counts.lateValue)
	if i.live == nil {
		i.sums.lost(i.counts.lostWeight-min(weight, i.counts.lostWeight), i.counts.lostEvents-min(events, i.counts.lostEvents), i.control.lostIn())
	}
	if i.counts.full > 0 && !i.warnedFull {
		i.warnedFull = true
		i.log.Warnf("%s: the gadget's maps are full, so events are lost%s", Name, i.full)
	}
}

// summarize logs the run's counts at its end.
func (i *instance) summarize() {
	c := i.counts
	handed, folded := i.sums.handed()
	i.log.Infof("%s: %d events, %d sampled: %d added to rows, %d inner calls, %d of other kinds, %d not decoded, %d lost in the kernel; stacks: %d from the unwinder, %d from frame pointers, %d missing; %d rows emitted; %d samples did not get a row of their own; the sampling step was %s",
		Name, c.events, c.read+c.lost, c.added, c.inner, c.other, c.bad, c.lost,
		c.whole, c.byFramePointers, c.none, handed, folded, i.pace.String())
	if text := i.stacks.Summary(); text != "" {
		i.log.Infof("%s: %s", Name, text)
	}
	if n := i.warnings.Suppressed(); n > 0 {
		i.log.Warnf("%s: %d similar errors were not logged", Name, n)
	}
	if i.live != nil {
		i.live.mu.Lock()
		defer i.live.mu.Unlock()
		i.log.Infof("%s: allocations in use: %d had no stack at the last read; removed: %d whose stack did not arrive, %d of processes that exited or called execve; not recorded: %d because the gadget's map was full, %d because the operator's table was full",
			Name, i.live.unknown, i.live.removed, i.live.gone, c.full, i.live.refused)
	}
}
