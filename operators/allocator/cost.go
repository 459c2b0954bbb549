package allocator

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// emulated and stepped are called to measure a probe's cost. The kernel emulates the first instruction of emulated. It
// single-steps the first instruction of stepped, which takes a second trap. Both are in assembly, because Go functions do not
// begin with an instruction that the kernel emulates.
func emulated()

func stepped()

// These variables hold the code addresses of both functions. Go's function values point to wrappers of assembly functions.
var emulatedPC, steppedPC uintptr

const (
	measureRounds = 8
	measureCalls  = 250
	// leastCost is the minimum assumed cost of a probe.
	leastCost = 100 * time.Nanosecond
	// returnTraps is the assumed cost of a return probe, in traps. The kernel replaces the return address and later restores it.
	returnTraps = 2
)

// costs holds how much a probe adds to a call's cost, by the kind of the function's first instruction. It includes the trap,
// and the gadget's program until it decides not to sample the call.
type costs struct{ emulated, stepped time.Duration }

// costsUnknown holds the assumed costs if they cannot be measured.
var costsUnknown = costs{time.Microsecond, 2 * time.Microsecond}

// costs measures the costs in this process, on its current CPU.
func (l *loaded) costs(store *symbols.Store) (costs, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return costsUnknown, err
	}
	defer self.Close()
	info, _, err := store.Info(context.Background(), self)
	if err != nil {
		return costsUnknown, err
	}
	executable, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", self.Fd()))
	if err != nil {
		return costsUnknown, err
	}
	var c costs
	for _, m := range []struct {
		to   *time.Duration
		pc   uintptr
		call func()
	}{{&c.emulated, emulatedPC, emulated}, {&c.stepped, steppedPC, stepped}} {
		offset, ok := info.Offset(uint64(m.pc))
		if !ok {
			return costsUnknown, fmt.Errorf("the address %#x is in none of the executable segments of this program", m.pc)
		}
		before := measure(m.call)
		probe, err := executable.Uprobe("", l[allocators.Nothing], &link.UprobeOptions{Address: offset, PID: os.Getpid()})
		if err != nil {
			return costsUnknown, err
		}
		*m.to = max(measure(m.call)-before, leastCost)
		if err := probe.Close(); err != nil {
			return costsUnknown, err
		}
	}
	return c, nil
}

// measure returns the median CPU time of a call.
func measure(call func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var times []time.Duration
	for range measureRounds {
		begin := patience.ThreadTime()
		for range measureCalls {
			call()
		}
		times = append(times, (patience.ThreadTime()-begin)/measureCalls)
	}
	return median(times)
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// colder estimates a call's cost in a real program from the cost measured with warm caches. In the programs of test/memory,
// calls cost 1.05 to 1.5 times as much as with warm caches.
func colder(each time.Duration) time.Duration { return each * 4 / 3 }

// each estimates what a probe adds to the cost of a call. Most programs mainly call malloc, calloc and realloc. The estimate is
// therefore the median of their costs, but at least the cost of malloc and operator new. With live, each returns the mean for
// calls that allocate, their returns, and calls that free.
func (c costs) each(f *file, live bool) time.Duration {
	var malloc, others, free []time.Duration
	seen := map[allocators.Program]bool{}
	for _, fn := range f.functions {
		cost := c.stepped
		if f.quick[fn.Offset] {
			cost = c.emulated
		}
		switch fn.Program {
		case allocators.SizeFirst, allocators.Throws: // find puts malloc and operator new first among their kind; the others are rarely called
			if !seen[fn.Program] {
				malloc = append(malloc, cost)
			}
			seen[fn.Program] = true
		case allocators.CountSize, allocators.AddressSize:
			others = append(others, cost)
		case allocators.Address:
			free = append(free, cost)
		default:
		}
	}
	allocates := time.Duration(0)
	if len(malloc) > 0 {
		allocates = slices.Max(malloc)
		others = append(others, allocates)
	}
	allocates = max(allocates, median(others))
	if !live {
		return allocates
	}
	back := returnTraps * c.emulated
	if len(f.exits) > 0 { // these functions make most allocations, and return instructions are not emulated
		back = max(back, c.stepped)
	}
	return (allocates + back + median(free)) / 3
}
