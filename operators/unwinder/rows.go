package unwinder

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	metadatav1 "github.com/inspektor-gadget/inspektor-gadget/pkg/metadata/v1"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	sourceName = "samples"
	// stacksVar is where the exporter finds the frames of rows.
	stacksVar = fieldmap.StacksVar
	// maxRows is how many different rows a second may have.
	maxRows = 1 << 16
)

// rowKey is what makes a row different from others.
type rowKey struct {
	stack *wire.Stack
	proc  *wire.Proc
	comm  string
	trace [16]byte
	span  [8]byte
}

// rows are those of one run, of the second that is not over yet. They are for one goroutine; Frames is called in it, while rows
// are handed on.
type rows struct {
	ds   datasource.DataSource
	text bool

	comm, pid, mntns, samples, stack, stackID datasource.FieldAccessor

	sums   map[rowKey]uint64
	stacks map[uint64]*wire.Stack // of the rows that are handed on at this moment
	texts  strings.Builder
}

// register makes the data source.
func (r *rows) register(gadgetCtx operators.GadgetContext, hz int) error {
	r.sums, r.stacks = map[rowKey]uint64{}, map[uint64]*wire.Stack{}
	var err error
	if r.ds, err = gadgetCtx.RegisterDataSource(datasource.TypeArray, sourceName); err != nil {
		return err
	}
	r.ds.AddAnnotation("profiles.period", strconv.FormatInt(int64(time.Second)/int64(hz), 10))
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
	return nil
}

func template(name string) []datasource.FieldOption {
	return []datasource.FieldOption{datasource.WithAnnotations(map[string]string{metadatav1.TemplateAnnotation: name})}
}

// add adds a sample, and returns false if there are too many different ones.
func (r *rows) add(s *wire.Sample, n uint64) bool {
	k := rowKey{stack: s.Stack, proc: s.Proc, comm: s.Comm, trace: s.TraceID, span: s.SpanID}
	have, there := r.sums[k]
	if !there && len(r.sums) >= maxRows {
		return false
	}
	r.sums[k] = have + n
	return true
}

// emit hands the rows on, and returns how many samples they hold.
func (r *rows) emit() (uint64, error) {
	if len(r.sums) == 0 {
		return 0, nil
	}
	sums := r.sums
	r.sums = make(map[rowKey]uint64, len(sums))
	packet, err := r.ds.NewPacketArray()
	if err != nil {
		return 0, fmt.Errorf("making rows: %w", err)
	}
	total := uint64(0)
	texts := map[*wire.Stack]string{}
	for k, n := range sums {
		d := packet.New()
		_ = r.comm.PutString(d, k.comm)
		_ = r.pid.PutUint32(d, k.proc.PID)
		_ = r.mntns.PutUint64(d, k.proc.MntNS)
		_ = r.samples.PutUint64(d, n)
		_ = r.stackID.PutUint64(d, k.stack.ID)
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
	for _, f := range s.Frames {
		dst = append(dst, frame(f))
	}
	if s.Abort != 0 {
		return dst, stack.Truncated, false
	}
	return dst, stack.OK, false
}

// frame translates a frame.
func frame(f *wire.Frame) profile.Frame {
	out := profile.Frame{
		Name: f.Function, File: f.File, Line: int64(min(f.Line, 1<<31)), Type: profile.FrameType(f.Type.String()), Address: f.Address,
	}
	if m := f.Mapping; m != nil && m.File != nil {
		out.Mapping = profile.Mapping{
			File: m.File.Name, GNUBuildID: m.File.GNUBuildID, GoBuildID: m.File.GoBuildID, HTLHash: fmt.Sprintf("%x", m.File.Hash),
			Start: m.Start, Limit: m.End, FileOffset: m.Offset, Symbolized: f.Function != "",
		}
	}
	return out
}

// format writes a stack as Inspektor Gadget does: leaf first, each function followed by "; ".
func (r *rows) format(s *wire.Stack) string {
	b := &r.texts
	b.Reset()
	for _, f := range s.Frames {
		switch m := f.Mapping; {
		case f.Function != "":
			b.WriteString(f.Function)
		case m != nil && m.File != nil && m.File.Name != "":
			fmt.Fprintf(b, "%s+0x%x", m.File.Name, f.Address)
		case f.Address != 0:
			fmt.Fprintf(b, "0x%x", f.Address)
		default:
			fmt.Fprintf(b, "[%s]", f.Type)
		}
		b.WriteString("; ")
	}
	return b.String()
}
