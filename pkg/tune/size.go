package tune

import (
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// lruReserve is the number of LRU map entries that a CPU can reserve: 128 free and 128 recent ones. See LOCAL_FREE_TARGET and
// LOCAL_PENDING in kernel/bpf/bpf_lru_list.c. A map that holds only slightly more entries per CPU loses stacks that are still
// needed.
const lruReserve = 256

// A map can be enlarged to at most 1/memoryShare of the machine's memory. Hypervisors report more possible CPUs than a small
// machine will ever have.
const memoryShare = 256

// Entries returns the number of entries for a map. That is perCPU for each possible CPU, limited to a 256th of the machine's
// memory, and at least def, the image's default. entry and memory are the sizes of an entry and of the memory in bytes.
func Entries(def, perCPU, cpus int, entry, memory uint64) int {
	n := perCPU * cpus
	if most := memory / memoryShare / max(entry, 1); uint64(max(n, 0)) > most {
		n = int(most)
	}
	return max(n, def)
}

const maxEntries = "_max_entries"

const wholeVar = "otel-profiles/whole-stacks"

// UnwindsAll records that a run has its user stacks from the unwinder. Only a few stacks, with a limited rate, are then in the
// gadget's map. Call it before Apply.
func UnwindsAll(gadgetCtx operators.GadgetContext) { gadgetCtx.SetVar(wholeVar, true) }

// sizeMaps sets the parameters for map sizes. A gadget's metadata can state how many entries a map needs per CPU (percpu in the
// parameter's entry). An LRU map gets at least lruReserve. If the run has its user stacks from the unwinder, whole and
// wholepercpu replace the default and percpu. A map can then be smaller than its default, which sizeMaps logs, because users who
// ask for the default do not get it.
func (p parameters) sizeMaps(spec func(name string) *ebpf.MapSpec, m Machine, whole bool, log logger.Logger) {
	for variable := range p.metadata.GetStringMap("params.ebpf") {
		name, ok := strings.CutSuffix(variable, maxEntries)
		if !ok || !p.isDefault(variable) {
			continue
		}
		def, err := strconv.Atoi(p.entry(variable, "defaultvalue"))
		s := spec(name)
		if err != nil || s == nil {
			continue
		}
		perCPU, _ := strconv.Atoi(p.entry(variable, "percpu"))
		least := def
		if n, err := strconv.Atoi(p.entry(variable, "whole")); whole && err == nil {
			least = n
			perCPU, _ = strconv.Atoi(p.entry(variable, "wholepercpu"))
		}
		if s.Type == ebpf.LRUHash {
			perCPU = max(perCPU, lruReserve)
		}
		if n := Entries(least, perCPU, m.CPUs, uint64(s.KeySize+s.ValueSize), m.Memory); n != def {
			p.set(variable, strconv.Itoa(n))
			if n < def {
				log.Infof("with whole stacks, --%s is %d instead of %d: to choose the size yourself, set another value", p.key(variable), n, def)
			}
		}
	}
}

// Machine holds the properties for which gadgets are tuned.
type Machine struct {
	CPUs          int                    // number of possible CPUs
	Memory        uint64                 // bytes
	HasTracepoint func(name string) bool // reports whether the kernel has the tracepoint
	// Kprobe returns the name under which a kernel function can be probed, or an error with the reason if there is none.
	Kprobe func(function string) (name string, err error)
	// Addresses returns the addresses of kernel symbols. It returns an error if any is unknown.
	Addresses func(symbols ...string) ([]uint64, error)
}

// ThisMachine describes the machine on which the program runs.
func ThisMachine() Machine {
	m := Machine{CPUs: 1, Memory: 1 << 30, HasTracepoint: hasTracepoint, Kprobe: kprobe, Addresses: stack.KernelAddresses}
	if n, err := ebpf.PossibleCPU(); err == nil {
		m.CPUs = n
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
				kB, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				m.Memory = kB << 10
			}
		}
	}
	return m
}
