package allocator

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// loaded holds the gadget's programs.
type loaded [allocators.Programs]*ebpf.Program

// load opens the programs in the gadget's map.
func load(m *ebpf.Map) (loaded, error) {
	var l loaded
	for i := range l {
		if err := m.Lookup(uint32(i), &l[i]); err != nil {
			l.close()
			return l, fmt.Errorf("removing program %d from the map %q: %w", i, "allocator_programs", err)
		}
	}
	return l, nil
}

func (l *loaded) close() {
	for i, p := range l {
		_ = p.Close() // Close of nil does nothing
		l[i] = nil
	}
}

// probe is a probe at a function or at its return.
type probe struct {
	link.Link
	program allocators.Program
}

// attach attaches probes to an open file's functions, for the process that a thread belongs to. With live, functions that free
// memory also get probes, and functions that allocate also get a return probe. Functions that can throw get probes at their
// exits instead, or no probes if their exits are unknown. The kernel can delay each attachment, so the most frequently called
// function comes last. Functions that free memory come first. If a probe missed a free, the block would count as in use
// forever.
func (l *loaded) attach(f *file, thread uint32, live bool) ([]probe, error) {
	executable, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.open.Fd()))
	if err != nil {
		return nil, err
	}
	links := []probe{} // not nil, see process.files
	put := func(program allocators.Program, offset uint64, attach func(string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)) error {
		one, err := attach("", l[program], &link.UprobeOptions{Address: offset, PID: int(thread)})
		if err == nil {
			links = append(links, probe{one, program})
		}
		return err
	}
	done := map[uint64]bool{} // functions can share exits
	for _, fn := range slices.Backward(allocators.ByRank(f.watched(live))) {
		// The return probe comes first, so every probed call's return is recorded.
		if live && fn.Program != allocators.Address && fn.Program != allocators.Throws {
			err = put(allocators.Returned, fn.Offset, executable.Uretprobe)
		}
		for _, exit := range f.exits[fn.Offset] {
			if live && err == nil && !done[exit] {
				err = put(allocators.Returning, exit, executable.Uprobe)
				done[exit] = true
			}
		}
		if err == nil {
			err = put(fn.At(), fn.Offset, executable.Uprobe)
		}
		if err != nil {
			closeProbes(links, byProgram{})
			return nil, err
		}
	}
	slices.Reverse(links)
	return links, nil
}

// closers is how many probes are closed concurrently, because each close waits in the kernel.
const closers = 32

// counts mirrors the gadget's struct allocator_counts.
type counts struct {
	Calls byProgram
	Drawn uint64 // nanoseconds
}

func (c *counts) usage() usage { return usage{c.Calls.sum(), time.Duration(c.Drawn)} }

// byProgram counts calls by the program that handles them.
type byProgram [allocators.Programs]uint64

func (c *byProgram) sum() (n uint64) {
	for _, calls := range c {
		n += calls
	}
	return n
}

// closeProbes removes probes. met holds the calls of each program so far. closeProbes returns the time during which probed calls
// were not counted.
//
// The kernel first detaches a probe's program and waits until no CPU runs it. Then it removes the probe itself and waits again.
// closeProbes runs many first waits concurrently. The second waits run one after another, so the most frequently called probes
// come first.
func closeProbes(links []probe, met byProgram) time.Duration {
	slices.SortStableFunc(links, func(a, b probe) int { return cmp.Compare(met[b.program], met[a.program]) })
	begin := time.Now()
	events := make([]*os.File, len(links))
	stopped := make([]chan struct{}, len(links))
	next := make(chan int, len(links))
	for k := range links {
		stopped[k] = make(chan struct{})
		next <- k
	}
	close(next)
	for range min(closers, len(links)) {
		go func() {
			for k := range next {
				// A second open file keeps the probe in place after its link is closed.
				if e, ok := links[k].Link.(link.PerfEvent); ok {
					events[k], _ = e.PerfEvent()
				}
				_ = links[k].Close()
				close(stopped[k])
			}
		}()
	}
	// Any of a program's probes can be the busiest, so the last probe's time counts.
	var last [allocators.Programs]time.Duration
	for k, l := range links {
		<-stopped[k]
		last[l.program] = time.Since(begin)
		if events[k] != nil {
			_ = events[k].Close() // removes the probe, with the second wait
		}
	}
	return spread(last, met)
}

// spread returns the mean of the programs' times, weighted by calls.
func spread(times [allocators.Programs]time.Duration, met byProgram) time.Duration {
	sum := 0.0
	for p, t := range times {
		sum += t.Seconds() * float64(met[p])
	}
	return seconds(sum / float64(max(met.sum(), 1)))
}

// watched returns the functions that get probes.
func (f *file) watched(live bool) []allocators.Function {
	var out []allocators.Function
	for _, fn := range f.functions {
		if !live && fn.Program == allocators.Address || live && fn.Program == allocators.Throws && f.exits[fn.Offset] == nil {
			continue
		}
		out = append(out, fn)
	}
	return out
}

// unwatched reports whether some allocating functions get no probes.
func (f *file) unwatched(live bool) bool {
	return live && slices.ContainsFunc(f.functions, func(fn allocators.Function) bool { return fn.Program == allocators.Throws && f.exits[fn.Offset] == nil })
}
