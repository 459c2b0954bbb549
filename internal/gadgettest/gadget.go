// Package gadgettest runs operators with a gadget that needs no kernel. It has a real gadget context of Inspektor Gadget, and a
// profiler's data source. The test emits its rows.
package gadgettest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/sirupsen/logrus"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// Image is the image name of every Gadget.
const Image = "registry.example/profile_cpu:v1.2"

// Gadget is a gadget without eBPF.
type Gadget struct {
	// Type is the data source's type. The default is TypeArray.
	Type datasource.Type
	// Annotations are added to the data source's annotations, which are a profiler's.
	Annotations map[string]string
	// Metadata is the gadget's gadget.yaml, if set.
	Metadata string

	// PreStart is called after the operator's own PreStart, Start when the gadget starts, and PostStop after all operators have
	// stopped. Each can emit rows.
	PreStart, Start, PostStop func(g *Gadget)
	// Logged is called with each logged line, in the goroutine that logged it.
	Logged func(g *Gadget, line string)

	// Make sets Context. Source is set while the gadget runs.
	Source  datasource.DataSource
	Context *gadgetcontext.GadgetContext
	// Log is the log of the gadget's operators.
	Log *Log

	kernel, user, comm, mntns, samples, container, containerID datasource.FieldAccessor
}

// Emits returns a Start that emits one row, and ends the gadget.
func Emits(leaf string, value uint64) func(*Gadget) {
	return func(g *Gadget) {
		g.Emit(leaf, value)
		g.Context.Cancel()
	}
}

// Log stores log lines. It is safe for concurrent use.
type Log struct {
	igtest.Buffer
	call func(line string)
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.call(string(p))
	return l.Buffer.Write(p)
}

func (g *Gadget) init(gadgetCtx operators.GadgetContext) error {
	ds, err := gadgetCtx.RegisterDataSource(g.Type, "samples")
	if err != nil {
		return err
	}
	for k, v := range map[string]string{
		"profiles.stack-fields": "kern_stack,user_stack", "profiles.value-field": "samples", "profiles.name": "process_cpu",
	} {
		ds.AddAnnotation(k, v)
	}
	for k, v := range g.Annotations {
		ds.AddAnnotation(k, v)
	}
	g.Source = ds
	empty := datasource.WithFlags(datasource.FieldFlagEmpty)
	parents := map[string]datasource.FieldAccessor{}
	for _, f := range []struct {
		to   *datasource.FieldAccessor
		name string
		kind api.Kind
		tags []string
	}{
		{to: &g.kernel, name: "kern_stack", kind: api.Kind_String},
		{to: &g.user, name: "user_stack", kind: api.Kind_String},
		{to: &g.samples, name: "samples", kind: api.Kind_Uint64},
		{to: &g.comm, name: "proc.comm", kind: api.Kind_String},
		{to: &g.mntns, name: "proc.mntns_id", kind: api.Kind_Uint64, tags: []string{"type:gadget_mntns_id"}},
		{to: &g.container, name: "runtime.containerName", kind: api.Kind_String},
		{to: &g.containerID, name: "runtime.containerId", kind: api.Kind_String},
	} {
		parent, name, nested := strings.Cut(f.name, ".")
		switch {
		case !nested:
			*f.to, err = ds.AddField(f.name, f.kind)
		case parents[parent] == nil:
			if parents[parent], err = ds.AddField(parent, api.Kind_Invalid, empty); err != nil {
				return err
			}
			fallthrough
		default:
			*f.to, err = parents[parent].AddSubField(name, f.kind)
		}
		if err != nil {
			return err
		}
		(*f.to).AddTags(f.tags...)
	}
	return nil
}

// Row identifies a row.
type Row struct {
	Leaf  string // the leaf function of the user stack
	Value uint64
	// Container is the container's name, from which its ID is derived. It is empty for the host.
	Container string
}

// Fill sets the fields of a row on the host: its leaf function and its value.
func (g *Gadget) Fill(d datasource.Data, leaf string, n uint64) {
	g.FillRow(d, Row{Leaf: leaf, Value: n})
}

// FillRow sets the fields of a row.
func (g *Gadget) FillRow(d datasource.Data, r Row) {
	must(g.kernel.PutString(d, "do_syscall_64; entry; "))
	must(g.user.PutString(d, r.Leaf+"; main.work; main.main; "))
	must(g.comm.PutString(d, "worker"))
	must(g.samples.PutUint64(d, r.Value))
	must(g.mntns.PutUint64(d, 1))
	if r.Container != "" {
		must(g.container.PutString(d, r.Container))
		must(g.containerID.PutString(d, fmt.Sprintf("%064x", sha256.Sum256([]byte(r.Container)))))
	}
}

// Emit sends one row. It panics if a subscriber returns an error, because a subscriber must not return one.
func (g *Gadget) Emit(leaf string, n uint64) {
	if g.Type == datasource.TypeSingle {
		p, err := g.Source.NewPacketSingle()
		must(err)
		g.Fill(p, leaf, n)
		must(g.Source.EmitAndRelease(p))
		return
	}
	p, err := g.Source.NewPacketArray()
	must(err)
	d := p.New()
	g.Fill(d, leaf, n)
	p.Append(d)
	must(g.Source.EmitAndRelease(p))
}

// Make creates the gadget's context. op runs after the operator that emits rows, and before the position of the command line's
// operator.
func (g *Gadget) Make(ctx context.Context, op operators.DataOperator, opts ...gadgetcontext.Option) *gadgetcontext.GadgetContext {
	if g.Type == 0 {
		g.Type = datasource.TypeArray
	}
	call := func(f *func(*Gadget)) func(operators.GadgetContext) error {
		return func(operators.GadgetContext) error {
			if *f != nil {
				(*f)(g)
			}
			return nil
		}
	}
	emitter := simple.New("emitter", simple.WithPriority(1), simple.OnInit(g.init), simple.OnStart(call(&g.Start)), simple.OnPostStop(call(&g.PostStop)))
	before := simple.New("before", simple.WithPriority(10000), simple.OnPreStart(call(&g.PreStart)))
	g.Log = &Log{call: func(line string) {
		if g.Logged != nil {
			g.Logged(g, line)
		}
	}}
	l := igtest.Logger(g.Log)
	l.SetLevel(logrus.InfoLevel)
	opts = append([]gadgetcontext.Option{
		gadgetcontext.WithDataOperators(emitter, op, before), gadgetcontext.WithLogger(l),
	}, opts...)
	g.Context = gadgetcontext.New(ctx, Image, opts...)
	if g.Metadata != "" {
		v := viper.New()
		v.SetConfigType("yaml")
		if err := v.ReadConfig(strings.NewReader(g.Metadata)); err != nil {
			panic(err)
		}
		g.Context.SetVar("config", v)
	}
	return g.Context
}

// Params returns the parameters of a run with that exporter. more holds further operator parameters, as alternating keys and
// values.
func Params(exporter string, more ...string) api.ParamValues {
	const prefix = "operator.otel-profiles."
	v := api.ParamValues{prefix + "otel-profiles-exporter": exporter}
	for i := 0; i+1 < len(more); i += 2 {
		v[prefix+more[i]] = more[i+1]
	}
	return v
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
