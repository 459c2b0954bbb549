package unwinder

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	metadatav1 "github.com/inspektor-gadget/inspektor-gadget/pkg/metadata/v1"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	sourceName = "samples"
	// stacksVar is where the exporter finds the frames of rows.
	stacksVar = fieldmap.StacksVar
	// maxRows is how many different rows a second may have.
	maxRows = 1 << 16
	// maxSpans is how many spans a second may have.
	maxSpans = 1000
)

// kernelSymbols is what is known of the running kernel, read once in a process.
var kernelSymbols = sync.OnceValues(stack.LoadKernelSymbols)

// rowKey is what makes a row different from others.
type rowKey struct {
	stack *wire.Stack
	proc  *wire.Proc
	comm  string
	said
}

// rows are the rows of one run that were not handed on yet. They are for one goroutine; Frames is called in it, while
// rows are handed on.
type rows struct {
	ds   datasource.DataSource
	text bool
	said sayings
	// userOnly leaves out the frames of the kernel.
	userOnly bool
	names    *names
	kernel   func() *stack.Kernel

	comm, pid, mntns, samples, stack, stackID datasource.FieldAccessor

	containers     containers
	otherContainer uint64 // samples of containers whose name cannot be told any more

	sums   map[rowKey]uint64
	stacks map[uint64]*wire.Stack // by ID: those of the rows that are being handed on
	texts  strings.Builder
}

// register makes the data source.
func (r *rows) register(gadgetCtx operators.GadgetContext, hz int) error {
	r.kernel = sync.OnceValue(func() *stack.Kernel {
		known, _ := kernelSymbols() // what could not be read is left out
		return stack.NewKernel(stack.KernelOptions{Symbols: known, KeepTracing: true})
	})
	r.containers.wrong = func(samples uint64) { r.otherContainer += samples }
	r.sums, r.stacks = map[rowKey]uint64{}, map[uint64]*wire.Stack{}
	var err error
	if r.ds, err = gadgetCtx.RegisterDataSource(datasource.TypeArray, sourceName); err != nil {
		return err
	}
	r.ds.AddAnnotation("profiles.period", strconv.FormatInt(int64(time.Second)/int64(hz), 10))
	// Without this annotation a client of several nodes takes one packet of each node, and waits for ever with the
	// next.
	r.ds.AddAnnotation(api.FetchIntervalAnnotation, emitInterval.String())
	hidden := datasource.WithAnnotations(map[string]string{
		metadatav1.ColumnsHiddenAnnotation: "true", "json.skip": "true",
	})
	proc, err := r.ds.AddField("proc", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty))
	if err != nil {
		return err
	}
	for _, f := range []struct {
		dst     *datasource.FieldAccessor
		add     func(string, api.Kind, ...datasource.FieldOption) (datasource.FieldAccessor, error)
		name    string
		kind    api.Kind
		options []datasource.FieldOption
	}{
		{&r.comm, proc.AddSubField, "comm", api.Kind_String, template("comm")},
		{&r.pid, proc.AddSubField, "pid", api.Kind_Uint32, template("pid")},
		{&r.mntns, proc.AddSubField, "mntns_id", api.Kind_Uint64, append(template("ns"), datasource.WithTags("type:gadget_mntns_id"))},
		{&r.samples, r.ds.AddField, "samples", api.Kind_Uint64, nil},
		{&r.stack, r.ds.AddField, "stack", api.Kind_String, nil},
		{&r.stackID, r.ds.AddField, "stack_id", api.Kind_Uint64, []datasource.FieldOption{datasource.WithTags(fieldmap.StackTag), hidden}},
	} {
		if *f.dst, err = f.add(f.name, f.kind, f.options...); err != nil {
			return fmt.Errorf("field %q: %w", f.name, err)
		}
	}
	return r.said.register(r.ds)
}

func template(name string) []datasource.FieldOption {
	return []datasource.FieldOption{datasource.WithAnnotations(map[string]string{metadatav1.TemplateAnnotation: name})}
}

// add adds a sample, and returns false if there are too many different ones.
func (r *rows) add(s *wire.Sample, n uint64) bool {
	k := rowKey{stack: s.Stack, proc: s.Proc, comm: s.Comm, said: r.said.of(&s.Said, n)}
	have, there := r.sums[k]
	if !there {
		if len(r.sums) >= maxRows {
			return false
		}
		r.want(s)
	}
	r.sums[k] = have + n
	return true
}

// emit hands the rows on, and returns how many samples they hold.
func (r *rows) emit() (uint64, error) {
	if len(r.sums) == 0 {
		return 0, nil
	}
	packet, err := r.ds.NewPacketArray()
	if err != nil {
		return 0, fmt.Errorf("making rows: %w", err) // the sums stay, and the next rows are added to them
	}
	sums := r.sums
	clear(r.said.seen)
	r.sums = make(map[rowKey]uint64, len(sums))
	total := uint64(0)
	texts := map[*wire.Stack]string{}
	starts := make(map[uint32]uint64, len(sums))
	for k, n := range sums {
		if known, ok := starts[k.proc.PID]; !ok || k.proc.Start < known {
			starts[k.proc.PID] = k.proc.Start
		}
		d := packet.New()
		_ = r.comm.PutString(d, k.comm)
		_ = r.pid.PutUint32(d, k.proc.PID)
		_ = r.mntns.PutUint64(d, k.proc.MntNS)
		_ = r.samples.PutUint64(d, n)
		_ = r.stackID.PutUint64(d, k.stack.ID)
		r.said.put(d, k.said)
		if r.text {
			text, ok := texts[k.stack]
			if !ok {
				text = r.format(k.stack)
				texts[k.stack] = text
			}
			_ = r.stack.PutString(d, text)
		}
		packet.Append(d)
		r.stacks[k.stack.ID] = k.stack
		total += n
	}
	r.containers.begin(starts)
	err = r.ds.EmitAndRelease(packet)
	clear(r.stacks)
	return total, err
}

// Frames implements fieldmap.Stacks.
func (r *rows) Frames(dst []profile.Frame, id uint64) (frames []profile.Frame, outcome stack.Outcome, pending bool) {
	s := r.stacks[id]
	if s == nil {
		return dst, stack.Lost, false
	}
	kernel := kernelFrames(s.Frames)
	dst = r.inKernel(dst, s.Frames[:kernel])
	for i, f := range s.Frames[kernel:] {
		var more bool
		dst, more = r.frame(dst, f, kernel+i+1 == len(s.Frames))
		pending = pending || more
	}
	if s.Abort != 0 {
		return dst, stack.Truncated, pending
	}
	return dst, stack.OK, pending
}

// inKernel appends frames of the kernel by name, without addresses, which would tell where it was loaded.
func (r *rows) inKernel(dst []profile.Frame, frames []*wire.Frame) []profile.Frame {
	if len(frames) == 0 || r.userOnly {
		return dst
	}
	var text []byte
	for _, f := range frames {
		text = append(append(text, cmp.Or(f.Function, stack.Unknown)...), "; "...)
	}
	dst, _ = r.kernel().Append(dst, text, 0, false)
	return dst
}

// kernelFrames counts the frames of the kernel, which are at the leaf.
func kernelFrames(frames []*wire.Frame) int {
	for i, f := range frames {
		if f.Type != wire.FrameKernel {
			return i
		}
	}
	return len(frames)
}

// byAddress tells whether a frame's function is looked up by its address: of Go the unwinder knows the outermost function
// alone, and of a caller the line behind the call.
func byAddress(f *wire.Frame) bool {
	return (f.Function == "" || f.Type == wire.FrameGo) && f.Mapping != nil && f.Mapping.File != nil
}

// frame appends a frame that is not the kernel's, and behind it those that it was inlined into. If pending, its name may
// be known later. Wrappers of Go's methods are left out, but not as the outermost frame.
func (r *rows) frame(dst []profile.Frame, f *wire.Frame, outermost bool) (frames []profile.Frame, pending bool) {
	out := profile.Frame{
		Name: f.Function, File: f.File, Line: int64(min(f.Line, 1<<31)), Type: profile.FrameType(f.Type.String()), Address: f.Address,
	}
	m := f.Mapping
	if m == nil || m.File == nil {
		// A bare address means nothing outside of its process, and would give away where in memory its code lies.
		out.Address = 0
		out.Name = cmp.Or(out.Name, stack.Unknown)
		return append(dst, out), false
	}
	var symbol symbols.Symbol
	if byAddress(f) {
		if symbol, pending = r.names.lookup(m.File, nil, f.Address); symbol.Name != "" {
			fieldmap.SetSymbol(&out, &symbol)
		}
		if !outermost && len(symbol.Callers) == 0 && symbol.Wrapper() {
			return dst, pending
		}
	}
	out.Mapping = profile.Mapping{
		File: cmp.Or(m.File.Path, m.File.Name), GNUBuildID: m.File.GNUBuildID, GoBuildID: m.File.GoBuildID, HTLHash: m.File.HashText(),
		// Start, Limit and FileOffset stay 0, as the address is already that of the file's symbol tables: a
		// backend must not take anything off it.
		Symbolized: out.Name != "",
	}
	dst = append(dst, out)
	for i := range symbol.Callers {
		if c := &symbol.Callers[i]; !c.Wrapper() {
			fieldmap.SetSymbol(&out, c)
			dst = append(dst, out)
		}
	}
	return dst, pending
}

// want has the files of a sample's stack read, so that their names are there when the rows are handed on.
func (r *rows) want(s *wire.Sample) {
	if r.names == nil {
		return
	}
	for _, f := range s.Stack.Frames {
		if byAddress(f) {
			r.names.lookup(f.Mapping.File, s.Proc, f.Address)
		}
	}
}

// format writes a stack as Inspektor Gadget does: leaf first, each function followed by "; ".
func (r *rows) format(s *wire.Stack) string {
	b := &r.texts
	b.Reset()
	for _, f := range s.Frames {
		name := f.Function
		m := f.Mapping
		inFile := m != nil && m.File != nil
		if byAddress(f) {
			symbol, _ := r.names.lookup(m.File, nil, f.Address)
			for _, c := range symbol.Callers {
				b.WriteString(printable.Clean(stack.Demangle(symbol.Name)) + "; ")
				symbol = c
			}
			name = cmp.Or(printable.Clean(stack.Demangle(symbol.Name)), name)
		}
		switch {
		case name != "":
			b.WriteString(name)
		case inFile && m.File.Name != "":
			fmt.Fprintf(b, "%s+0x%x", m.File.Name, f.Address)
		default:
			b.WriteString(stack.Unknown)
		}
		b.WriteString("; ")
	}
	return b.String()
}
