package stack

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// kernelFile is the name of the kernel's own code in perf and pprof.
const kernelFile = "[kernel.kallsyms]"

// KernelOptions are the settings of a Kernel. The zero value gives names without addresses.
type KernelOptions struct {
	// Map returns the gadget's kernel stack map, from which addresses are read. It is of the type BPF_MAP_TYPE_STACK_TRACE, or a
	// hash map with the same keys and values. It may be nil or return nil, as it does before the gadget has started: then there
	// are no addresses.
	Map func() *ebpf.Map
	// RawAddresses leaves addresses unchanged. They reveal where the kernel was loaded.
	RawAddresses bool
	// KeepTracing keeps the frames that the tracing itself puts on top of a stack. It is for samplers: in
	// their stacks, such frames are time that the workload spends on being traced.
	KeepTracing bool
	// Symbols is the knowledge of the running kernel; nil if there is none.
	Symbols *KernelSymbols
}

// Kernel turns kernel stacks into frames. It is not safe for concurrent use: each field of a data
// source has its own, used in the goroutine of the gadget's callback alone. A look-up takes an entry
// out of the stack map for a moment, and a second reader at that moment would find none.
type Kernel struct {
	opts    KernelOptions
	symbols *KernelSymbols
	modules []module
	// knowsModules is false if modules could not be read.
	knowsModules bool
	now          time.Time // of the last refresh
	split        splitter
	addrs        []uint64
	key          uint32

	// Of AppendID, read at its first call.
	functions, generated *functionTable
	named                bool
	unnamed              error // why there are no names
}

// NewKernel returns a Kernel. With symbols from LoadKernelSymbols, it checks the list of the kernel's modules. It reads their
// symbols if they differ from the last call's, which takes tens of milliseconds. So make it when the gadget is prepared.
func NewKernel(opts KernelOptions) *Kernel {
	k := &Kernel{opts: opts, symbols: opts.Symbols}
	if k.symbols == nil {
		k.symbols = &KernelSymbols{}
	}
	if k.symbols.modules != nil && k.symbols.End != 0 {
		k.modules, k.knowsModules = k.symbols.modules.now()
	}
	return k
}

// Append appends the frames of a stack to dst, leaf first. symbols is Inspektor Gadget's text of the stack, "" if there is none.
// id is the raw stack ID, negative (as int32) for an error. hasID is false if the row has no such field. With any outcome but OK
// and Truncated nothing is appended.
//
// The address of each frame comes from the stack map. The entry may have been replaced by another
// stack since Inspektor Gadget read it: addresses are used only if there are as many as names. Each
// call for a valid ID costs one look-up, so call it once per stack that is not yet known.
//
// The frames that tracing puts at the leaf are left out (see KernelOptions.KeepTracing), but never
// all there are.
//
// The names of the frames are parts of symbols: a caller that keeps them clones them.
func (k *Kernel) Append(dst []profile.Frame, symbols []byte, id int32, hasID bool) ([]profile.Frame, Outcome) {
	text, truncated := limitText(symbols)
	if trimSeparator(text) == "" {
		return dst, Missing(id, hasID)
	}
	want := -1
	k.addrs = k.addrs[:0]
	if hasID && id >= 0 {
		if k.lookup(uint32(id)) {
			want = len(k.addrs)
		}
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

// AppendID appends the frames of the stack with the given ID to dst, leaf first. It reads their addresses from the stack map and
// names them itself, in contrast to Append. The ID is as the eBPF program stored it: 0 says that no stack was collected, a
// negative number is an error. Everything else is as for Append.
//
// The error says why the functions of a stack that is there have no names.
//
// It takes some microseconds. The first call also reads /proc/kallsyms, which takes tens of milliseconds. All Kernels of a
// process share the names of the image's functions, some 4 MB. Call it once per stack that is not yet known.
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
		outcome = Truncated // there is no room for more
	}
	dst = slices.Grow(dst, len(k.addrs))
	for i, addr := range k.addrs {
		dst = dst[:start+i+1]
		k.frame(&dst[start+i], k.functionAt(within(addr, i == 0)), addr, i == 0, true)
	}
	return k.trim(dst, start), outcome, k.unnamed
}

// trim removes the tracing's own frames from a stack that begins at start.
func (k *Kernel) trim(dst []profile.Frame, start int) []profile.Frame {
	if k.opts.KeepTracing {
		return dst
	}
	return slices.Delete(dst, start, start+tracingFrames(dst[start:], k.outside))
}

// readNames reads the names of functions once.
func (k *Kernel) readNames() {
	if k.named {
		return
	}
	k.named = true
	if k.symbols.functions == nil {
		return
	}
	if k.functions, k.unnamed = k.symbols.functions(); k.unnamed == nil {
		// The kernel makes and removes code at run time. Without its names, that code is unknown.
		k.generated, _ = k.symbols.generated()
	}
}

// functionAt returns the name of the function at an address, "" if it is not known. The image's functions are not
// searched for an address outside of it: symbols have no sizes, and the last one would match.
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
	if k.symbols.End == 0 { // the place of the image is not known
		return k.functions.name(addr, generatedLimit)
	}
	return ""
}

// within returns an address within a frame's instruction. For the leaf, it is the address itself. A
// caller's address is the return address, which can be past the function's end.
func within(addr uint64, leaf bool) uint64 {
	if leaf || addr == 0 {
		return addr
	}
	return addr - 1
}

// frame sets f to the known facts of a frame. addr is an address of the running kernel; it must not get into f unless the options
// say so.
func (k *Kernel) frame(f *profile.Frame, name string, addr uint64, leaf, known bool) {
	*f = profile.Frame{Name: name, Type: profile.FrameKernel}
	located := true
	switch {
	case !known || k.symbols.End == 0:
		located = false
		// The kernel's own code is the likely place. A guess does no harm if there is no
		// address to look up in it.
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
			// name is from the symbols at the gadget's start, and can belong to an earlier program at this place.
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
		// Inspektor Gadget searches the symbols as if they were sorted, and those of modules
		// are not.
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

// refresh reads the kernel's modules again, at most once every lookAgain. It is called for frames outside the image.
func (k *Kernel) refresh() {
	k.now = time.Now()
	if k.symbols.modules == nil || !k.knowsModules {
		return
	}
	if modules, ok, _ := k.symbols.modules.current(k.now); ok {
		k.modules = modules
	}
}

// Changes returns how often code outside the kernel's image has been replaced so far. Stacks that are known by their addresses
// may need new names then.
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

// generatedPrefixes are the names of code that the kernel makes at run time, outside of its image and of modules. Inspektor
// Gadget names an address after the nearest symbol before it, among those at the gadget's start. So another name in such a place
// is wrong; in practice it is the image's last symbol.
var generatedPrefixes = []string{"bpf_", "ftrace_trampoline", "kprobe_"}

// image returns the mapping of the kernel's own code. Without a build ID there is none: it would
// identify nothing.
func (k *Kernel) image() profile.Mapping {
	if k.symbols.BuildID == "" {
		return profile.Mapping{}
	}
	return profile.Mapping{File: kernelFile, GNUBuildID: k.symbols.BuildID}
}

func (k *Kernel) inImage(addr uint64) bool {
	return addr >= k.symbols.Start && addr < k.symbols.End
}

// address returns the address of frame i, if it was found in the stack map.
func (k *Kernel) address(i int) (uint64, bool) {
	if i >= len(k.addrs) {
		return 0, false
	}
	return k.addrs[i], true
}

// outside reports whether frame i is known to be outside the kernel's image, as code of BPF
// programs is.
func (k *Kernel) outside(i int) bool {
	addr, known := k.address(i)
	return known && k.symbols.End != 0 && !k.inImage(addr)
}

// lookup reads the addresses of a stack into addrs and reports whether it found any. It does not
// return why it failed, because a stack without addresses is still a stack.
func (k *Kernel) lookup(id uint32) bool {
	k.addrs = readStack(k.opts.Map, &k.key, id, k.addrs)
	return len(k.addrs) > 0
}
