package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// addRunning adds all running processes.
func (i *instance) addRunning() {
	i.refused = time.Time{}
	if i.filter.comm != "" { // a thread can get this name at any time
		i.refused = time.Now()
	}
	for _, pid := range running() {
		if i.processes[pid] == nil && i.filter.pass(pid) {
			i.add(pid)
		}
	}
}

func (i *instance) add(pid uint32) {
	now := time.Now()
	if len(i.processes) >= mostProcesses && now.Sub(i.swept) >= sweepInterval {
		i.sweep()
		i.swept = time.Now()
	}
	if len(i.processes) >= mostProcesses {
		i.refused = now
		if !i.warned.processes {
			i.warned.processes = true
			i.log.Warnf("%s: the maximum of %d processes have probes, and further processes get none until one exits: choose fewer processes", Name, mostProcesses)
		}
		return
	}
	p := &process{pid: pid, since: now, next: now, files: map[symtab.FileID][]probe{}}
	i.processes[pid] = p
	i.enter(p)
	i.control.Know(pid)
}

// sweepInterval is the shortest time between two searches for exited processes while there is no room for new processes.
const sweepInterval = 100 * time.Millisecond

// sweep drops exited processes. Their next inspection would also drop them, but programs can start faster than the operator
// inspects them.
func (i *instance) sweep() {
	for _, p := range i.processes {
		if _, err := os.Stat(procDir(p.pid)); errors.Is(err, fs.ErrNotExist) {
			i.forget(p)
		}
	}
}

const (
	// lookMost is approximately how long processes are inspected without a pause. The pause is lookPause times as long. This
	// limits the CPU time if programs constantly start or map files.
	lookMost  = 100 * time.Millisecond
	lookPause = 3
)

// look inspects the processes that are due. It returns early if the run ends.
func (i *instance) look() {
	now := time.Now()
	if now.Before(i.rest) {
		return
	}
	for pid, p := range i.processes {
		if now.Before(p.next) {
			continue
		}
		seen, err := i.finder.allocators(pid)
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				i.denied++
				i.warn(fmt.Errorf("no access to process %d, so its allocations are not recorded: %w; grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN", pid, err))
			} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) && i.finder.ctx.Err() == nil {
				i.warn(fmt.Errorf("reading process %d: %w", pid, err))
			}
			if errors.Is(err, patience.ErrTooMany) { // the process is not the cause
				p.later(now, true)
				continue
			}
			i.forget(p)
			continue
		}
		i.update(p, seen)
		if seen.more {
			p.next, p.pending = now, 0
		} else {
			p.later(now, seen.pending)
		}
		if i.finder.ctx.Err() != nil || time.Since(now) > lookMost {
			break
		}
	}
	i.most = max(i.most, len(i.processes))
	if used := time.Since(now); used > tick/(lookPause+1) {
		i.rest = now.Add((lookPause + 1) * used)
	}
}

// update attaches probes to a process's new files.
func (i *instance) update(p *process, seen found) {
	if p.start != 0 && p.start != seen.start { // another process has this PID now, and the probes belong to an exited process
		i.detachFrom(p)
		clear(p.files)
	}
	var dead []probe
	if p.thread != 0 && p.thread != seen.thread { // probes for an exited thread never fire
		dead = i.take(p)
	}
	if p.start, p.thread = seen.start, seen.thread; i.wants(p) {
		i.attachTo(p)
	}
	closeProbes(dead, byProgram{}) // at the end, because closing is slow
	for _, id := range seen.files {
		if _, ok := p.files[id]; ok {
			continue
		}
		if len(p.files) >= mostOfOne {
			i.leaveUnmapped(p, seen.files)
		}
		p.files[id] = nil
		if i.wants(p) {
			i.attach(p, id)
		}
	}
}

// leaveUnmapped removes a process's probes from files that the process no longer maps after an execve or a dlclose.
func (i *instance) leaveUnmapped(p *process, mapped []symtab.FileID) {
	for id, links := range p.files {
		if !slices.Contains(mapped, id) {
			delete(p.files, id)
			i.probes -= len(links)
			closeProbes(links, byProgram{})
		}
	}
}

// used returns the files in which processes have probes.
func (i *instance) used() map[symtab.FileID]bool {
	used := map[symtab.FileID]bool{}
	for _, p := range i.processes {
		for id := range p.files {
			used[id] = true
		}
	}
	return used
}

func (i *instance) forget(p *process) {
	i.detachFrom(p)
	i.leave(p)
	delete(i.processes, p.pid)
}

func (i *instance) attach(p *process, id symtab.FileID) {
	f := i.finder.files[id]
	if f == nil { // there was no room
		delete(p.files, id)
		return
	}
	if i.probes+2*len(f.functions)+allocators.MaxExits*len(f.exits) > mostProbes {
		if !i.warned.probes {
			i.warned.probes = true
			i.log.Warnf("%s: %d of at most %d probes are in use, so some processes get none: choose fewer processes", Name, i.probes, mostProbes)
		}
		return
	}
	if len(f.functions) == 0 { // its file system did not respond
		return
	}
	var attached []probe
	var each time.Duration
	var failed error
	loaded, thread := i.loaded, p.thread
	err := i.finder.attach(id, func() {
		if attached, failed = loaded.attach(f, thread, i.live); failed == nil {
			each = i.costs.each(f, i.live)
		}
	}, func() {
		if failed == nil {
			closeProbes(attached, byProgram{})
		}
	})
	if err != nil { // the other variables must not be used any longer
		if i.finder.ctx.Err() == nil { // otherwise the run is ending
			i.warn(fmt.Errorf("attaching probes to a file of process %d: %w", p.pid, err))
		}
		return
	}
	if err := failed; err != nil {
		if !errors.Is(err, syscall.ESRCH) { // the process has not exited
			i.warn(fmt.Errorf("attaching probes to process %d: %w", p.pid, err))
		}
		return
	}
	if f.unwatched(i.live) {
		i.warn(fmt.Errorf("allocations by C++'s operator new in process %d are not recorded: its return instructions were not found, and a return probe would crash the program at an exception", p.pid))
	}
	p.files[id] = attached
	i.probes += len(attached)
	i.pacer.each = max(i.pacer.each, colder(each))
	if i.probed++; i.probed == 1 {
		i.log.Infof("%s: the first probes are attached: %d probes in an allocator of process %d", Name, len(attached), p.pid)
	}
}

// wants reports whether a process should have probes now.
func (i *instance) wants(p *process) bool { return !p.paced || i.attached && !p.skip }

func (i *instance) attachAll() {
	i.attached = true
	for _, p := range i.processes {
		if i.wants(p) {
			i.attachTo(p)
		}
	}
}

// attachTo attaches probes to a process's files that have none yet.
func (i *instance) attachTo(p *process) {
	for id, links := range p.files {
		if links == nil {
			i.attach(p, id)
		}
	}
}

// detach removes all probes, or only the probes of processes with stretches. It returns the result of closeProbes.
func (i *instance) detach(all bool) time.Duration {
	i.attached = false
	var links []probe
	// Removing thousands of probes is slow, so the process with the most calls comes first.
	calls := func(p *process) uint64 { return i.usedAt(p.slot).calls }
	for _, p := range slices.SortedFunc(maps.Values(i.processes), func(a, b *process) int { return cmp.Compare(calls(b), calls(a)) }) {
		if all || p.paced {
			links = append(links, i.take(p)...)
		}
	}
	met := i.count().Calls
	for p := range met {
		met[p] -= min(met[p], i.before.Calls[p])
	}
	return closeProbes(links, met)
}

func (i *instance) detachFrom(p *process) { closeProbes(i.take(p), byProgram{}) }

// take removes the probes from a process's records and returns them.
func (i *instance) take(p *process) (links []probe) {
	for id, attached := range p.files {
		links = append(links, attached...)
		p.files[id] = nil
	}
	i.probes -= len(links)
	return links
}
