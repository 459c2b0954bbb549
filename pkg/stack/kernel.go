package stack

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// kernelFile is the file name that perf and pprof use for the kernel's own code.
const kernelFile = "[kernel.kallsyms]"

// KernelOptions are the settings of a Kernel. With the zero value, frames have names and no addresses.
type KernelOptions struct {
	// Map returns the gadget's kernel stack map, from which addresses are read. The map is a BPF_MAP_TYPE_STACK_TRACE, or a
	// hash map with the same keys and values. Map can be nil or return nil, for example before the gadget has started. Then
	// there are no addresses.
	Map func() *ebpf.Map
	// RawAddresses leaves addresses unchanged. They reveal where the kernel was loaded.
	RawAddresses bool
	// KeepTracing keeps the frames that tracing adds at a stack's leaf. It is for samplers, because these frames represent time
	// that the workload loses to tracing.
	KeepTracing bool
	// Symbols holds the running kernel's symbols. It can be nil.
	Symbols *KernelSymbols
}

// Kernel turns kernel stacks into frames. It is not safe for concurrent use. Each field of a data source has its own Kernel,
// which is only used in the goroutine of the gadget's callback. A lookup removes an entry from the stack map for a moment, so a
// concurrent reader would not find it.
type Kernel struct {
	opts    KernelOptions
	symbols *KernelSymbols
	modules []module
	// knowsModules is false if modules could not be read.
	knowsModules bool
	now          time.Time // time of the last refresh
	split        splitter
	addrs        []uint64
	key          uint32

	// AppendID reads these at its first call.
	functions, generated *functionTable
	named                bool
	unnamed              error // the reason why functions have no names
}

// NewKernel returns a Kernel. With symbols from LoadKernelSymbols, it checks the list of the kernel's modules. It reads their
// symbols if the list has changed, which takes tens of milliseconds. So call it when the gadget is prepared.
func NewKernel(opts KernelOptions) *Kernel {
	k := &Kernel{opts: opts, symbols: opts.Symbols}
	if k.symbols == nil {
		k.symbols = &KernelSymbols{}
	}
	k.refresh()
	return k
}

// Append appends the frames of a stack to dst, leaf first. symbols is Inspektor Gadget's text of the stack, or "". id is the
// raw stack ID. As an int32, it is negative for an error. hasID is false if the row has no such field. Unless the outcome is OK
// or Truncated, Append appends nothing.
//
// The address of each frame comes from the stack map. Another stack can have replaced the entry since Inspektor Gadget read it.
// So addresses are used only if there are as many addresses as names. Each call for a valid ID costs one lookup, so call it
// once per unknown stack.
//
// Append drops tracing frames at the leaf (see KernelOptions.KeepTracing), unless the stack has no other frames.
//
// The names of frames are parts of symbols. Clone names that you keep.
func (k *Kernel) Append(dst []profile.Frame, symbols []byte, id int32, hasID bool) ([]profile.Frame, Outcome) {
	text, truncated := limitText(symbols)
	if trimSeparator(text) == "" {
		return dst, Missing(id, hasID)
	}
	want := -1
	k.addrs = k.addrs[:0]
	if hasID && id >= 0 && k.lookup(uint32(id)) {
		want = len(k.addrs)
	}
	spans := k.split.split(text, want)
	if len(spans) != len(k.addrs) {
		k.addrs = k.addrs[:0]
	}
	if len(spans) > MaxFrames {
		spans, truncated = spans[:MaxFrames], true
	}
	truncated = truncated || len(spans) == recordedDepth

	start := len(dst)
	dst = slices.Grow(dst, len(spans))
	for i, p := range spans {
		entry := text[p.start:p.end]
		addr, known := k.address(i)
		if !known {
			addr, known = parseAddress(entry)
		}
		dst = dst[:start+i+1]
		k.frame(&dst[start+i], functionName(entry), addr, i == 0, known)
	}
	dst = k.trim(dst, start)
	if truncated {
		return dst, Truncated
	}
	return dst, OK
}

// AppendID appends the frames of the stack with the given ID to dst, leaf first. Unlike Append, it reads addresses from the
// stack map and finds the names itself. The eBPF program has stored id. 0 means that no stack was collected, and a negative
// number is an error. In all other respects, AppendID is like Append.
//
// The error says why functions of an existing stack have no names.
//
// It takes some microseconds. The first call also reads /proc/kallsyms, which takes tens of milliseconds. All Kernels in a
// process share the image's function names, which take about 4 MB. Call it once per unknown stack.
func (k *Kernel) AppendID(dst []profile.Frame, id int32) ([]profile.Frame, Outcome, error) {
	if id <= 0 || !k.lookup(uint32(id)) {
		return dst, Missing(id, id != 0), nil
	}
	k.readNames()
	start, outcome := len(dst), OK
	if len(k.addrs) > MaxFrames {
		k.addrs, outcome = k.addrs[:MaxFrames], Truncated
	}
	if len(k.addrs) == recordedDepth {
		outcome = Truncated // the kernel records no more
	}
	dst = slices.Grow(dst, len(k.addrs))
	for i, addr := range k.addrs {
		dst = dst[:start+i+1]
		k.frame(&dst[start+i], k.functionAt(within(addr, i == 0)), addr, i == 0, true)
	}
	return k.trim(dst, start), outcome, k.unnamed
}

// trim removes tracing frames from a stack that begins at start.
func (k *Kernel) trim(dst []profile.Frame, start int) []profile.Frame {
	if k.opts.KeepTracing {
		return dst
	}
	return slices.Delete(dst, start, start+tracingFrames(dst[start:], k.outside))
}

// readNames reads the function names once.
func (k *Kernel) readNames() {
	if k.named {
		return
	}
	k.named = true
	if k.symbols.functions == nil {
		return
	}
	if k.functions, k.unnamed = k.symbols.functions(); k.unnamed == nil {
		// The kernel creates and removes code at run time. Without these symbols, such code is unknown.
		k.generated, _ = k.symbols.generated()
	}
}

// functionAt returns the name of the function at an address, or "". It does not search the image's functions for an address
// outside the image. Symbols have no sizes, so the last function would match.
func (k *Kernel) functionAt(addr uint64) string {
	switch {
	case k.functions == nil:
		return ""
	case k.inImage(addr):
		return k.functions.name(addr, math.MaxUint64)
	}
	if k.generated != nil {
		if name := k.generated.name(addr, generatedLimit); name != "" {
			return name
		}
	}
	if k.symbols.End == 0 { // the bounds of the image are not known
		return k.functions.name(addr, generatedLimit)
	}
	return ""
}

// within returns an address within a frame's instruction. For the leaf, that is the address itself. A caller has a return
// address, which can be past the function's end.
func within(addr uint64, leaf bool) uint64 {
	if leaf || addr == 0 {
		return addr
	}
	return addr - 1
}

// frame sets f to the known facts of a frame. addr is an address of the running kernel, and must not appear in f unless the
// options say so.
func (k *Kernel) frame(f *profile.Frame, name string, addr uint64, leaf, known bool) {
	*f = profile.Frame{Name: name, Type: profile.FrameKernel}
	located := true
	switch {
	case !known || k.symbols.End == 0:
		located = false
		// The code is probably the kernel's own. A wrong guess does no harm without an address.
		if !known || !k.opts.RawAddresses {
			f.Mapping = k.image()
		}
	case k.inImage(addr):
		f.Address = addr - k.symbols.Start
		f.Mapping = k.image()
	default:
		at := within(addr, leaf)
		k.refresh()
		m := findModule(k.modules, at)
		if m == nil && k.symbols.programs != nil {
			// name comes from the symbols at the gadget's start, and can belong to an earlier program at this address.
			if program, listed := k.symbols.programs.name(at, k.now); program != "" {
				f.Name, located = program, false
				break
			} else if listed && strings.HasPrefix(name, "bpf_prog_") {
				f.Name = ""
			}
		}
		if m == nil {
			located = false
			if k.knowsModules && !hasAnyPrefix(name, generatedPrefixes) {
				f.Name = ""
			}
			break
		}
		// Inspektor Gadget searches the symbols as if they were sorted, but module symbols are not.
		f.Name = m.function(at)
		f.Mapping = m.mapping
		if m.mapping.GNUBuildID != "" {
			f.Address = addr - m.start
		} else {
			located = false
		}
	}
	if known && k.opts.RawAddresses {
		f.Address, located = addr, true
	}
	if f.Name == "" && !located {
		f.Name = Unknown
	}
	f.Mapping.Symbolized = f.Name != "" && f.Mapping.GNUBuildID != ""
}

// refresh reads the kernel's modules again, at most once per lookAgain. It is called for frames outside the image.
func (k *Kernel) refresh() {
	k.now = time.Now()
	if k.symbols.modules == nil || k.symbols.End == 0 {
		return
	}
	if modules, ok, _ := k.symbols.modules.current(k.now); ok { // otherwise, the last known list remains
		k.modules, k.knowsModules = modules, true
	}
}

// Changes returns how often code outside the kernel's image has been replaced. After a change, known stacks can need new names.
func (s *KernelSymbols) Changes() int {
	n, now := 0, time.Now()
	if s.programs != nil {
		n = s.programs.changes(now)
	}
	if s.modules != nil {
		_, _, changed := s.modules.current(now)
		n += changed
	}
	return n
}

// generatedPrefixes are name prefixes of code that the kernel creates at run time, outside its image and modules. Inspektor
// Gadget names an address after the nearest preceding symbol that existed at the gadget's start. So any other name there is
// wrong. In practice, that is the image's last symbol.
var generatedPrefixes = []string{"bpf_", "ftrace_trampoline", "kprobe_"}

// image returns the mapping of the kernel's own code. Without a build ID, the mapping is empty, because it would identify
// nothing.
func (k *Kernel) image() profile.Mapping {
	if k.symbols.BuildID == "" {
		return profile.Mapping{}
	}
	return profile.Mapping{File: kernelFile, GNUBuildID: k.symbols.BuildID}
}

func (k *Kernel) inImage(addr uint64) bool {
	return addr >= k.symbols.Start && addr < k.symbols.End
}

// address returns the address of frame i if the stack map has it.
func (k *Kernel) address(i int) (uint64, bool) {
	if i >= len(k.addrs) {
		return 0, false
	}
	return k.addrs[i], true
}

// outside reports whether frame i is known to be outside the kernel's image, for example in a BPF program.
func (k *Kernel) outside(i int) bool {
	addr, known := k.address(i)
	return known && k.symbols.End != 0 && !k.inImage(addr)
}

// lookup reads the addresses of a stack into addrs, and reports whether it found any. It returns no error, because a stack can
// be used without addresses.
func (k *Kernel) lookup(id uint32) bool {
	k.addrs = readStack(k.opts.Map, &k.key, id, k.addrs)
	return len(k.addrs) > 0
}
