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

// loaded are the gadget's programs.
type loaded [allocators.Programs]*ebpf.Program

// load gets the programs from the gadget's map.
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
		if p != nil {
			_ = p.Close()
			l[i] = nil
		}
	}
}

// probes are the probes of one process in one file, the most called first.
type probes struct{ links []probe }

// probe is at one function, or at its return.
type probe struct {
	link.Link
	program allocators.Program
}

// attach attaches probes to the functions of an open file, for the process of a thread. With live, functions that free get
// probes, too. Functions that allocate get a return probe, or probes at their exits if they can throw. Without known exits they
// get none. The most called function comes last, because the kernel can delay each probe. Functions that free come first: a block
// whose free was missed would stay in use forever.
func (l *loaded) attach(f *file, thread uint32, live bool) (*probes, error) {
	executable, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.open.Fd()))
	if err != nil {
		return nil, err
	}
	p := &probes{}
	put := func(program allocators.Program, offset uint64, attach func(string, *ebpf.Program, *link.UprobeOptions) (link.Link, error)) error {
		one, err := attach("", l[program], &link.UprobeOptions{Address: offset, PID: int(thread)})
		if err == nil {
			p.links = append(p.links, probe{one, program})
		}
		return err
	}
	done := map[uint64]bool{} // functions can share exits
	for _, fn := range slices.Backward(allocators.ByRank(f.watched(live))) {
		// The return comes first, so that no call starts without its return being seen.
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
			closeProbes(p.links, byProgram{})
			return nil, err
		}
	}
	slices.Reverse(p.links)
	return p, nil
}

// closers is the number of probes that are closed at a time, because each waits in the kernel.
const closers = 32

// counts are struct allocator_counts of the gadget.
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

// closeProbes removes probes. met has the calls before that. It returns the time during which calls with a probe were not
// counted.
//
// The kernel detaches the program from a probe, and waits until no CPU runs it. Then it removes the probe itself, and waits
// again. The first wait covers many probes at a time here. The second is for each probe, so the most called one goes first.
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
				// A second open file keeps the probe after its link is closed.
				if e, ok := links[k].Link.(link.PerfEvent); ok {
					events[k], _ = e.PerfEvent()
				}
				_ = links[k].Close()
				close(stopped[k])
			}
		}()
	}
	// Any of a program's probes may belong to the busiest process, so the last one counts.
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

// spread returns the mean of the times, weighted by calls.
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
