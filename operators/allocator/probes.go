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

// load takes the programs out of the gadget's map.
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

// probes are those of one process in one file, the most expensive first.
type probes struct{ links []probe }

// probe is at one function, or at its return.
type probe struct {
	link.Link
	program allocators.Program
}

// attach puts probes to the functions of an open file, for the process of one thread. With live, functions that free get one.
// Functions that allocate get one for their return, or at their exits if they throw. If these are not known, they get none. The
// most called function comes last: the kernel can delay each of them. Functions that free come first: otherwise a missed end
// would stay in use for ever.
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
	done := map[uint64]bool{} // functions can have returns in common
	for _, fn := range slices.Backward(allocators.ByRank(f.watched(live))) {
		// The return comes first. A call that begins before it is attached does not stay in use for ever then.
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

// closers is the number of probes that lose their programs at a time, because each waits in the kernel.
const closers = 32

// counts are struct allocator_counts of the gadget.
type counts struct {
	Calls byProgram
	Drawn uint64 // nanoseconds
}

func (c *counts) usage() usage { return usage{c.Calls.sum(), time.Duration(c.Drawn)} }

// byProgram are calls, by the program that handles them.
type byProgram [allocators.Programs]uint64

func (c *byProgram) sum() (n uint64) {
	for _, calls := range c {
		n += calls
	}
	return n
}

// closeProbes removes probes. met are the calls of the time before. It returns the time for the calls that were missed during
// the removal.
//
// The kernel takes the program away from a probe, and waits until no CPU runs it. Only then it removes the probe itself, and
// waits once more. The first wait is for many probes at a time here. The second one is for each: the most called goes first.
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
				// With another file for it, the probe outlives its link.
				if e, ok := links[k].Link.(link.PerfEvent); ok {
					events[k], _ = e.PerfEvent()
				}
				_ = links[k].Close()
				close(stopped[k])
			}
		}()
	}
	// The last one of a program's probes can belong to the only busy process.
	var last [allocators.Programs]time.Duration
	for k, l := range links {
		<-stopped[k]
		last[l.program] = time.Since(begin)
		if events[k] != nil {
			_ = events[k].Close() // the probe is removed at once, and then there is the second wait
		}
	}
	return spread(last, met)
}

// spread returns the mean of times, weighted by calls.
func spread(times [allocators.Programs]time.Duration, met byProgram) time.Duration {
	sum := 0.0
	for p, t := range times {
		sum += t.Seconds() * float64(met[p])
	}
	return seconds(sum / float64(max(met.sum(), 1)))
}

// watched returns the functions with probes.
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

// unwatched reports whether some allocating functions get none.
func (f *file) unwatched(live bool) bool {
	return live && slices.ContainsFunc(f.functions, func(fn allocators.Function) bool { return fn.Program == allocators.Throws && f.exits[fn.Offset] == nil })
}
