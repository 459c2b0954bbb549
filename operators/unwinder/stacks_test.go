package unwinder

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// TestMain makes the test's executable act as the program unwinder if it has the flag -chains.
func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, "-chains"); i >= 0 {
		play(os.Args[i+1])
		return
	}
	os.Exit(m.Run())
}

// The program's events: one at the start of each kind, and one at its end.
var (
	playedEvent = uint64(1<<54 | 5)
	playedEnd   = uint64(1<<54 | 6)
	playedOtel  = otelID(70*time.Hour, 1)
)

// play serves each chain, with the same stack for all events.
func play(chains string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	w := wire.NewWriter(os.NewFile(3, "pipe"))
	w.Hello("")
	w.Ready(wire.Ready{})
	must(w.Flush())
	serve := func(kinds []wire.ChainKind) {
		e := wire.Entries{Descriptors: map[wire.ChainKind]int{}}
		for _, kind := range kinds {
			typ := map[wire.ChainKind]ebpf.ProgramType{
				wire.ChainRawTracepoint: ebpf.RawTracepoint, wire.ChainTracepoint: ebpf.TracePoint, wire.ChainPerfEvent: ebpf.PerfEvent, wire.ChainOtelPerf: ebpf.PerfEvent,
			}[kind]
			if typ == ebpf.UnspecifiedProgram {
				typ = ebpf.Kprobe
			}
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: typ, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
			must(err)
			runtime.SetFinalizer(p, nil)
			e.Descriptors[kind] = p.FD()
		}
		must(wire.SendEntries(5, e))
	}
	kinds, err := wire.ParseChains(chains)
	must(err)
	serve(kinds)
	go func() {
		for kinds, err := wire.ReceiveAsked(5); err == nil; kinds, err = wire.ReceiveAsked(5) {
			serve(kinds)
		}
	}()
	s := w.Stack([]uint32{
		w.Frame(&wire.Frame{Type: wire.FrameKernel, Function: "vfs_read"}, 0), w.Frame(&wire.Frame{Type: wire.FramePython, Function: "hash_orders"}, 0),
	}, 0)
	proc := w.Proc(wire.Proc{PID: 7})
	send := func(ids ...uint64) {
		for _, id := range ids {
			w.Unwound(id, s, proc, &wire.Said{})
		}
		w.Stats(&wire.Stats{Taken: uint64(len(ids))})
		must(w.Flush())
	}
	send(playedEvent, playedOtel)
	_, _ = io.Copy(io.Discard, os.Stdin)
	send(playedEnd)
}

// gadget is a run with the variables that its image would set, and an operator that runs the test's own program.
type gadget struct {
	*gadgetcontext.GadgetContext
	op      *operator
	program string // the unwinder
	log     *igtest.Buffer
	ds      datasource.DataSource
}

func newGadget(t *testing.T) *gadget {
	t.Helper()
	igtest.NeedRoot(t)
	own, err := os.Executable()
	require.NoError(t, err)
	g := &gadget{program: filepath.Join(filepath.Dir(own), unwinder.Program), log: &igtest.Buffer{}}
	require.NoError(t, os.Link(own, g.program))
	t.Cleanup(func() { os.Remove(g.program) })
	log := igtest.Logger(g.log)
	g.op = &operator{broker: unwinder.New(log)}
	g.GadgetContext = gadgetcontext.New(t.Context(), "gadget", gadgetcontext.WithLogger(log))
	t.Cleanup(g.Cancel)
	g.SetVar(fieldmap.TablesVar, symbols.NewShared(func() symbols.Options { return symbols.Options{Reader: parse.Here{}} }))
	for _, name := range []string{"unwind_on", "unwind_run", "unwind_step", "unwind_budget"} {
		g.SetVar(name, uint32(0))
	}
	g.SetVar(operators.MapSpecPrefix+"unwind_raw_tp", &ebpf.MapSpec{})
	g.ds, err = g.RegisterDataSource(datasource.TypeSingle, "events")
	require.NoError(t, err)
	raw, err := g.ds.AddField("user_stack_raw", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty), datasource.WithTags("type:"+ebpftypes.UserStackTypeName))
	require.NoError(t, err)
	_, err = raw.AddSubField("symbols", api.Kind_String)
	require.NoError(t, err)
	for name, kind := range map[string]api.Kind{"otel_correlation_id": api.Kind_Uint64, "boot_timestamp": api.Kind_Uint64, "tgid_level0": api.Kind_Uint32} {
		_, err = raw.AddSubField(name, kind, datasource.WithTags("name:"+name))
		require.NoError(t, err)
	}
	for name, kind := range map[string]api.Kind{"kern_stack": api.Kind_String, "unwound_id": api.Kind_Uint64} {
		_, err = g.ds.AddField(name, kind)
		require.NoError(t, err)
	}
	return g
}

// load makes the maps of the gadget's programs.
func (g *gadget) load(t *testing.T) {
	t.Helper()
	for _, spec := range []*ebpf.MapSpec{
		{Name: "unwind_raw_tp", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		{Name: "otel_tc_kprobe", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		{Name: "unwind_over", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		{Name: "unwind_counts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: wire.Results},
	} {
		g.SetVar(operators.MapPrefix+spec.Name, igtest.Map(t, spec))
	}
}

// served reports whether one of the gadget's arrays has a program.
func (g *gadget) served(name string) bool {
	m, _ := g.GetVar(operators.MapPrefix + name)
	var id uint32
	return m.(*ebpf.Map).Lookup(uint32(0), &id) == nil
}

// emit passes on a row, and returns the text of one of its fields.
func (g *gadget) emit(t *testing.T, values map[string]any, read string) (text string) {
	t.Helper()
	p, err := g.ds.NewPacketSingle()
	require.NoError(t, err)
	for name, v := range values {
		switch v := v.(type) {
		case uint64:
			require.NoError(t, g.ds.GetField(name).PutUint64(p, v))
		case uint32:
			require.NoError(t, g.ds.GetField(name).PutUint32(p, v))
		}
	}
	require.NoError(t, g.ds.Subscribe(func(_ datasource.DataSource, d datasource.Data) error {
		text, _ = g.ds.GetField(read).String(d)
		return nil
	}, 1000))
	require.NoError(t, g.ds.EmitAndRelease(p))
	return text
}

// TestWholeStacks requires that another operator's gadget calls the unwinder while it runs. All events get their stacks,
// including the last ones, and rows have names.
func TestWholeStacks(t *testing.T) {
	defer goleak.VerifyNone(t)
	g := newGadget(t)
	defer g.Cancel()
	s, err := newStacks(g.op, g, "whole", "bytes", newRows(true))
	require.NoError(t, err)
	require.NoError(t, s.PreStart(g, g.ds, 50))
	for name, want := range map[string]uint32{"unwind_on": 1, "unwind_run": 1, "unwind_step": 1, "unwind_budget": 50} {
		got, _ := g.GetVar(name)
		require.Equal(t, want, got, name)
	}
	slots, _ := g.GetVar(slotsVar)
	require.IsType(t, &ebpf.Map{}, slots)
	require.Empty(t, s.Summary(), "nothing has been asked yet")
	g.load(t)
	require.NoError(t, s.Start(g))
	require.True(t, g.served("unwind_raw_tp"))
	s.Know(uint32(os.Getpid()))

	var got []wire.Unwound
	take := func(u wire.Unwound) { got = append(got, u) }
	require.Eventually(t, func() bool { s.Read(take); return len(got) > 0 }, time.Minute, time.Millisecond)
	require.Equal(t, playedEvent, got[0].ID)
	whole := got[0].Stack
	s.Show(whole)
	require.Equal(t, "hash_orders; ", g.emit(t, map[string]any{"unwound_id": RowID(whole)}, "user_stack_raw.symbols"))
	require.Empty(t, g.emit(t, map[string]any{"unwound_id": RowID(nil)}, "user_stack_raw.symbols"))
	frames, outcome, _ := s.Frames(nil, RowID(whole), withFiles)
	require.Equal(t, stack.OK, outcome)
	require.Equal(t, []string{"vfs_read", "hash_orders"}, []string{frames[0].Name, frames[1].Name})
	s.Hide()
	require.Empty(t, g.emit(t, map[string]any{"unwound_id": RowID(whole)}, "user_stack_raw.symbols"))

	counts, _ := g.GetVar(operators.MapPrefix + "unwind_counts")
	perCPU := make([]unwindCount, ebpf.MustPossibleCPU())
	perCPU[0] = unwindCount{2, 30}
	perCPU[len(perCPU)-1].Value += 10
	require.NoError(t, counts.(*ebpf.Map).Put(uint32(wire.ResultDone), perCPU))
	none := make([]unwindCount, ebpf.MustPossibleCPU())
	none[0] = unwindCount{1, 10}
	require.NoError(t, counts.(*ebpf.Map).Put(uint32(wire.ResultNoChain), none))
	got = nil
	s.Finish(func() bool { return true }, take)
	over, _ := g.GetVar(operators.MapPrefix + "unwind_over")
	var value uint32
	require.NoError(t, over.(*ebpf.Map).Lookup(uint32(0), &value))
	require.NotZero(t, value, "events that still come would find no unwinder")
	require.Equal(t, playedEnd, got[len(got)-1].ID, "the last one who leaves gets all that there is")
	s.Count(1, 10)
	s.Stop()
	require.False(t, g.served("unwind_raw_tp"))
	require.Equal(t, "3 events sampled, 2 unwound (80.0 % of the bytes), 1 without an unwinder (20.0 % of the bytes), "+
		"1 whose stack did not arrive (20.0 % of the bytes)", s.Summary())
	require.Zero(t, s.op.broker.Totals().Restarts)
}

// TestNoWholeStacks requires that the log names what a gadget lacks, and that the unwinder is released.
func TestNoWholeStacks(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, tt := range []struct {
		how     string
		without func(*gadget)
		refused string
	}{
		{"whole", func(g *gadget) { g.SetVar("unwind_step", "") }, "--unwind=whole: the gadget has no variable unwind_step: rebuild the gadget's image"},
		{"whole", func(g *gadget) { g.SetVar(operators.MapSpecPrefix+"unwind_raw_tp", nil) }, "--unwind=whole: the gadget's programs do not call the unwinder"},
		{"whole", func(g *gadget) { os.Remove(g.program) }, "--unwind=whole: the program unwinder is not installed"},
		{"auto", func(g *gadget) { os.Remove(g.program) }, ""},
		{"auto", func(g *gadget) { g.Cancel() }, ""},
		{"sometimes", func(*gadget) {}, `parameter "unwind": got "sometimes", expected`},
	} {
		t.Run(tt.how+tt.refused, func(t *testing.T) {
			g := newGadget(t)
			defer g.Cancel()
			tt.without(g)
			s, err := newStacks(g.op, g, tt.how, "bytes", newRows(false))
			if err == nil {
				err = s.PreStart(g, g.ds, 50)
			}
			if tt.refused != "" {
				require.ErrorContains(t, err, tt.refused)
				return
			}
			require.NoError(t, err)
			require.Nil(t, s.sub)
			require.NoError(t, s.Start(g))
			s.Know(1)
			s.Finish(nil, nil)
			s.Stop()
			require.Empty(t, s.Summary())
		})
	}
	g := newGadget(t)
	defer g.Cancel()
	s, err := newStacks(g.op, g, "auto", "bytes", newRows(false))
	require.NoError(t, err)
	require.NoError(t, s.PreStart(g, g.ds, 50))
	require.EqualError(t, s.Start(g), `operator unwind: the gadget has no map "unwind_counts"`)
	s.Stop()
}

// TestOtelRun requires that rows of Inspektor Gadget's own gadgets get the stacks of their events. The summary says how many
// did.
func TestOtelRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	g := newGadget(t)
	defer g.Cancel()
	g.SetVar("otel-profiles/otel-chains", []string{"kprobe"})
	made, err := otelOperator{g.op}.InstantiateDataOperator(g, nil)
	require.NoError(t, err)
	run := made.(*otelInstance)
	require.NoError(t, run.PreStart(g))
	ids, _ := g.GetVar(symbolizer.OtelGenericParamsMapName)
	require.IsType(t, &ebpf.Map{}, ids)
	g.load(t)
	require.NoError(t, run.Start(g))
	require.True(t, g.served("otel_tc_kprobe"))
	require.Eventually(t, func() bool { _, more := g.op.otel.event(playedOtel); return more == nil }, time.Minute, time.Millisecond)

	row := map[string]any{"user_stack_raw.otel_correlation_id": playedOtel, "user_stack_raw.boot_timestamp": uint64(70 * time.Hour), "user_stack_raw.tgid_level0": uint32(7)}
	var whole []uint64
	require.NoError(t, g.ds.Subscribe(func(_ datasource.DataSource, d datasource.Data) error {
		id, err := g.ds.GetField("user_stack_raw." + fieldmap.WholeStack).Uint64(d)
		whole = append(whole, id)
		return err
	}, 2000))
	g.emit(t, row, "kern_stack")
	row["user_stack_raw.tgid_level0"] = uint32(8)
	g.emit(t, row, "kern_stack")
	row["user_stack_raw.otel_correlation_id"] = uint64(0)
	g.emit(t, row, "kern_stack")
	require.Len(t, whole, 3)
	require.Equal(t, []uint64{0, 0}, whole[1:], "another process, and no event")
	frames, outcome, _ := run.Frames(nil, whole[0], withFiles)
	require.Equal(t, stack.OK, outcome)
	require.Equal(t, profile.Frame{Name: "hash_orders", Type: "cpython"}, frames[1])

	require.NoError(t, run.Stop(g))
	require.NoError(t, run.Close(g))
	require.False(t, g.served("otel_tc_kprobe"))
	require.Contains(t, g.log.String(), "1 rows have whole stacks; totals of all gadgets with --collect-otel-stack: 0 events sampled, 1 rows with the stack ID of another event")
	_, left := g.op.otel.runs.Load(g.Context())
	require.False(t, left)
}

// TestNoOtelRun requires that a run with the flag fails without whole stacks.
func TestNoOtelRun(t *testing.T) {
	g := newGadget(t)
	o := otelOperator{g.op}
	none, err := o.InstantiateDataOperator(g, nil)
	require.NoError(t, err)
	require.Nil(t, none, "a run without the flag")

	g.SetVar("otel-profiles/otel-chains", []string{"kprobe"})
	run, err := o.InstantiateDataOperator(g, nil)
	require.NoError(t, err)
	require.NoError(t, os.Remove(g.program))
	require.ErrorContains(t, run.(*otelInstance).PreStart(g), "--collect-otel-stack: the program unwinder is not installed")
	require.NoError(t, run.(*otelInstance).Start(g))
	require.NoError(t, run.(*otelInstance).Close(g))

	g = newGadget(t)
	_, err = g.ds.AddField("old_stack", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty), datasource.WithTags("type:"+ebpftypes.UserStackTypeName))
	require.NoError(t, err)
	g.SetVar("otel-profiles/otel-chains", []string{"kprobe"})
	_, err = o.InstantiateDataOperator(g, nil)
	require.ErrorContains(t, err, "rebuild the gadget's image")
}

// TestSymbol requires that only native code is looked up by its file.
func TestSymbol(t *testing.T) {
	s := &Stacks{}
	for _, tt := range []struct {
		frame wire.Frame
		want  string
	}{
		{wire.Frame{Type: wire.FrameNative, Function: "malloc"}, "malloc"},
		{wire.Frame{Type: wire.FrameGo, Function: "main.main", Mapping: &wire.Mapping{File: &wire.File{}}}, "main.main"},
		{wire.Frame{Type: wire.FrameNative, Mapping: &wire.Mapping{}}, ""},
		{wire.Frame{Type: wire.FramePython, Function: "malloc"}, ""},
	} {
		name, pending := s.Symbol(&tt.frame)
		require.Equal(t, tt.want, name)
		require.False(t, pending)
	}
}

// TestWork requires that the log describes the unwinder's work for all gadgets during one run.
func TestWork(t *testing.T) {
	before := unwinder.Totals{Stats: wire.Stats{Taken: 100, Idle: 1, Aborts: map[uint32]uint64{2: 7}}, Restarts: 1, Crashed: 2, Away: time.Second}
	now := before
	now.Taken, now.Idle, now.Full, now.KernelLost, now.Restarts, now.Crashed, now.Away = 150, 4, 5, 6, 2, 9, 3*time.Second
	now.Memory, now.KernelMemory = 64<<20, 32<<20
	now.Languages[wire.FramePython].Frames, now.Languages[wire.FrameGo].Frames, now.Languages[wire.FrameUnknown].Frames = 40, 10, 3
	require.Equal(t, "50 stacks, with frames of: unknown code 3, Go 10, Python 40; all stacks are complete; stacks without a frame: 3; "+
		"lost: 5 in the unwinder, 6 in the kernel, 7 in 1 restarts (2.0 s without an unwinder); the unwinder used up to 64 MiB of memory and 32 MiB of kernel memory", work(before, now))
	now.Aborts = map[uint32]uint64{2: 8, 4: 30, 5: 20, 6: 10, 7: 5, 8: 3}
	said := reasons(before, now)
	require.Contains(t, said, "incomplete stacks: 69, most frequent reasons: "+unwinder.Reason(4)+" (30), "+unwinder.Reason(5)+" (20), ")
	require.Equal(t, 5, strings.Count(said, "("), "the five most frequent")
	require.NotContains(t, said, unwinder.Reason(2)+" (1)")
	now.Taken, now.Idle, now.NoProcess, now.Languages = before.Taken, before.Idle, 2, before.Languages
	require.Regexp(t, "^0 stacks; incomplete stacks: 69, .*; stacks of unknown processes: 2; lost: ", work(before, now))
}
