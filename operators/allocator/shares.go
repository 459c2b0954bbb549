package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

const (
	// settingsAlways is SETTINGS_ALWAYS in gadgets/include/capture.h.
	settingsAlways = 1
	// calmPart is the fraction of the limit that processes with permanent probes can use.
	calmPart = 0.5
)

// entry mirrors the gadget's struct allocator_process.
type entry struct{ Slot, Settings uint32 }

// share tracks the cost of one process's probes.
type share struct {
	slot  uint32    // index of its counts in allocator_counts; 0: none
	used  usage     // usage at the last measurement
	at    time.Time // time of the last measurement
	seen  usage     // usage already reported to the pacer
	began usage     // usage at the start of the stretch
	cost  float64   // CPUs that its probes use while they are attached
	paced bool      // its probes are attached only for stretches
	skip  bool      // no probes in the next stretch, because permanent probes have already covered this time
	under int       // number of consecutive cheap stretches
	calm  int       // number of consecutive cheap stretches after which the probes stay
}

// enter assigns a slot to a process and registers the process with the gadget's programs.
func (i *instance) enter(p *process) {
	for slot := range i.slots {
		if slot > 0 && !i.slots[slot] {
			i.slots[slot] = true
			p.slot, p.used, p.at = uint32(slot), i.usedAt(uint32(slot)), time.Now()
			p.seen, p.began = p.used, p.used
			break
		}
	}
	p.paced = i.pacer.plan.period > 0 // if others have stretches, because its cost is still unknown
	i.tellPrograms(p)
}

func (i *instance) tellPrograms(p *process) {
	e := entry{Slot: p.slot}
	if !p.paced {
		e.Settings = settingsAlways
	}
	if err := i.known.Update(p.pid, &e, ebpf.UpdateAny); err != nil {
		i.warn(fmt.Errorf("telling the gadget about process %d: %w", p.pid, err))
	}
}

// leave removes an exited process.
func (i *instance) leave(p *process) {
	_ = i.known.Delete(p.pid) // it fails if there is no entry
	i.slots[p.slot] = p.slot == 0
}

// usedAt returns the usage of the probes whose process has this slot. Slot 0 means all processes.
func (i *instance) usedAt(slot uint32) usage {
	n := i.countAt(slot)
	return n.usage()
}

// measure measures the recent cost of each process with permanent probes.
func (i *instance) measure(now time.Time) {
	i.measured = now
	for _, p := range i.processes {
		if p.paced {
			continue
		}
		used := i.usedAt(p.slot)
		if lately := used.minus(p.used); p.slot != 0 {
			p.cost = i.pacer.seconds(lately) / max(now.Sub(p.at).Seconds(), 1e-6)
		}
		p.used, p.at = used, now
	}
}

// collect updates and returns the usage of the probes that are attached only for stretches.
func (i *instance) collect() usage {
	for _, p := range i.processes {
		if p.paced {
			used := i.usedAt(p.slot)
			lately := used.minus(p.seen)
			p.seen = used
			i.paced.calls += lately.calls
			i.paced.drawn += lately.drawn
		}
	}
	return i.paced
}

// usage returns the pacer's input. While there are stretches, this is the usage of their probes. Otherwise it is the usage of all
// probes.
func (i *instance) usage() usage {
	switch {
	case i.pacer.plan.period == 0:
		return i.usedAt(0)
	case i.attached:
		return i.collect()
	}
	return i.paced
}

// pace limits a process's probes to stretches, or makes them permanent.
func (i *instance) pace(p *process, paced bool) {
	if p.paced == paced {
		return
	}
	if p.paced, p.under = paced, 0; paced {
		p.seen = i.usedAt(p.slot)
		p.calm = min(max(calm, 2*p.calm), mostCalm)
	}
	i.tellPrograms(p)
}

// split limits the most expensive processes' probes to stretches, until the other processes stay within calmPart of the limit.
func (i *instance) split() (chosen []*process) {
	var always []*process
	sum := 0.0
	for _, p := range i.processes {
		if !p.paced {
			always = append(always, p)
			sum += p.cost
		}
	}
	slices.SortFunc(always, func(a, b *process) int { return cmp.Compare(b.cost, a.cost) })
	for _, p := range always {
		if sum <= calmPart*i.maxCost {
			break
		}
		sum -= p.cost
		i.pace(p, true)
		chosen = append(chosen, p)
	}
	i.pacer.budget = i.maxCost - max(0, min(sum, calmPart*i.maxCost))
	return chosen
}

// watchAlways checks the processes that have permanent probes while others have stretches. The probes of a process that has
// become too expensive are also limited to stretches.
func (i *instance) watchAlways(now time.Time) {
	stretches := i.pacer.plan.period > 0
	if now.Sub(i.measured) < settle || i.live || stretches && i.attached { // an open stretch would count a chosen process twice
		return
	}
	i.measure(now)
	if !stretches {
		return
	}
	for _, p := range i.split() {
		p.skip = true
		i.detachFrom(p)
	}
}

// settled handles the end of a stretch that began at since. A process's probes become permanent after several consecutive cheap
// stretches.
func (i *instance) settled(now, since time.Time) {
	var stretched []*process
	left := calmPart * i.maxCost
	for _, p := range i.processes {
		switch {
		case !p.paced:
			left -= p.cost
		case p.skip:
			p.skip = false
		default:
			used := i.usedAt(p.slot)
			p.cost = max(i.pacer.seconds(used.minus(p.began))/max(now.Sub(since).Seconds(), 1e-6), p.cost/2)
			p.used, p.at = used, now
			stretched = append(stretched, p)
		}
	}
	slices.SortFunc(stretched, func(a, b *process) int { return cmp.Compare(a.cost, b.cost) })
	for _, p := range stretched {
		if left -= p.cost; left < 0 {
			p.under = 0
			continue
		}
		if p.under++; p.under >= max(p.calm, calm) {
			i.pace(p, false)
		}
	}
}

// tellShares logs once which programs are limited to stretches.
func (i *instance) tellShares(chosen []*process) {
	if len(chosen) == 0 || len(chosen) == len(i.processes) || i.warned.shares {
		return
	}
	i.warned.shares = true
	i.log.Infof("%s: %d of %d processes have probes only during random periods, because their probes cost too much; the most expensive is process %d with %.2f CPUs",
		Name, len(chosen), len(i.processes), chosen[0].pid, chosen[0].cost)
}
