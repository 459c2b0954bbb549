package captures

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const exampleMetadata = `
operator:
  captures:
    enabled: true
    source: allocations
    sums: [bytes, calls]
    step: sample_bytes
    live: {param: live, source: in_use, map: live_allocations, execs: live_execs}
params:
  ebpf:
    sample_bytes: {key: sample-bytes, defaultValue: "524288"}
    live: {key: live, defaultValue: "false"}
    live_allocations_max_entries: {key: live-entries, defaultValue: "65536"}
`

// run is a gadget's run with real maps, but without programs.
type run struct {
	*gadgetcontext.GadgetContext
	*instance
	log     *igtest.Buffer
	fake    *fakeStacks
	sources map[string]datasource.DataSource
}

// fakeStacks replaces the unwinder. The test makes its stacks.
type fakeStacks struct {
	stacks
	batch  []wire.Unwound
	symbol map[*wire.Frame]string
}

func (f *fakeStacks) Read(take func(wire.Unwound)) {
	for _, u := range f.batch {
		take(u)
	}
	f.batch = nil
}
func (f *fakeStacks) Finish(_ func() bool, take func(wire.Unwound)) { f.Read(take) }
func (f *fakeStacks) Show(*wire.Stack)                              {}
func (f *fakeStacks) Hide()                                         {}
func (f *fakeStacks) Symbol(frame *wire.Frame) (string, bool) {
	name, ok := f.symbol[frame]
	return name, !ok
}

// nextRows returns the rows for the next packet.
func (r *run) nextRows(t *testing.T) []row {
	t.Helper()
	rows, err := r.sums.rows(r.control.weight)
	require.NoError(t, err)
	return rows
}

// newRun creates a run of a gadget with this metadata.
func newRun(t *testing.T, metadata string, values api.ParamValues) (*run, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &run{log: &igtest.Buffer{}, sources: map[string]datasource.DataSource{}}
	r.GadgetContext = gadgetcontext.New(ctx, "gadget", gadgetcontext.WithLogger(igtest.Logger(r.log)))
	t.Cleanup(r.Cancel)
	for _, name := range []string{"allocations", "in_use"} {
		ds, err := r.RegisterDataSource(datasource.TypeArray, name)
		require.NoError(t, err)
		_, err = ds.AddStaticFields(exampleKey, staticFields(field{"proc", 0, 24, api.Kind_Bytes}))
		require.NoError(t, err)
		_, err = ds.AddStaticFields(exampleValue, staticFields(field{"bytes", 0, 8, api.Kind_Uint64}, field{"user_stack_raw", 16, userSize, api.Kind_Bytes}))
		require.NoError(t, err)
		r.sources[name] = ds
	}
	require.NoError(t, r.SetMetadata([]byte(metadata)))
	if values == nil {
		values = api.ParamValues{}
	}
	r.SetVar("otel-profiles/ebpf-params", values)
	r.SetVar(operators.MapSpecPrefix+"rows", exampleRows())
	got, err := (&operator{}).InstantiateDataOperator(r.GadgetContext, api.ParamValues{unwinder.ParamUnwind: "frame-pointers"})
	if got == nil || err != nil {
		return r, err
	}
	r.instance = got.(*instance)
	r.fake = &fakeStacks{stacks: r.stacks}
	r.stacks = r.fake
	return r, r.PreStart(r.GadgetContext)
}

// load creates the gadget's maps.
func (r *run) load(t *testing.T, without ...string) {
	t.Helper()
	for _, spec := range []*ebpf.MapSpec{
		{Name: "unwound", Type: ebpf.RingBuf, MaxEntries: 1 << 22},
		{Name: "capture_settings", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1},
		{Name: "capture_counts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 40, MaxEntries: 1},
		{Name: "ig_ustack", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 64},
		{Name: "live_allocations", Type: ebpf.Hash, KeySize: 16, ValueSize: 24, MaxEntries: 64},
		{Name: "live_execs", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 64},
	} {
		r.SetVar(operators.MapPrefix+spec.Name, igtest.Map(t, spec))
	}
	for _, name := range without {
		r.SetVar(operators.MapPrefix+name, (*ebpf.Map)(nil))
	}
}

func TestPeriod(t *testing.T) {
	r, err := newRun(t, exampleMetadata, api.ParamValues{"sample-bytes": "1000"})
	require.NoError(t, err)
	require.EqualValues(t, 1000, r.step)
	for _, ds := range r.sources {
		require.Equal(t, "1000", ds.Annotations()["profiles.period"])
	}
	r, err = newRun(t, exampleMetadata, nil)
	require.NoError(t, err)
	require.EqualValues(t, 524288, r.step, "the default")
	for _, text := range []string{"0", "-1", "4294967296", "1k", "NaN"} {
		_, err = newRun(t, exampleMetadata, api.ParamValues{"sample-bytes": text})
		require.EqualError(t, err, fmt.Sprintf(`parameter "sample-bytes": got %q, expected a number from 1 to 4294967295`, text))
	}
}

// Wrong metadata must not end the process.
func TestMetadataWrong(t *testing.T) {
	for _, tc := range []struct{ old, new, want string }{
		{"source: allocations", "source: none", `the gadget has no data source "none"`},
		{"source: allocations", "source: [1, 2]", "the gadget has no data source"},
		{"sums: [bytes, calls]", "sums: [bytes, none]", `my_value has no member "none" of 8 bytes`},
		{"sums: [bytes, calls]", "sums: {bytes: calls}", ""},
		{"sums: [bytes, calls]", "sums: [" + strings.Repeat("bytes,", 100) + "bytes]", "sums: 101 members, more than the limit of"},
		{"step: sample_bytes", "step: none", ""},
		{"step: sample_bytes", "step: {a: b}", ""},
		{"step: sample_bytes", "kinds: 1", "kinds: expected a non-empty map"},
		{"live: {param: live, source: in_use, map: live_allocations, execs: live_execs}", "live: true", ""},
		{"live: {param: live, source: in_use, map: live_allocations, execs: live_execs}", "live: {param: sample_bytes}", ""},
	} {
		metadata := strings.Replace(exampleMetadata, tc.old, tc.new, 1)
		require.NotEqual(t, exampleMetadata, metadata)
		_, err := newRun(t, metadata, nil)
		if tc.want == "" {
			require.NoError(t, err, tc.new)
		} else {
			require.ErrorContains(t, err, tc.want, tc.new)
		}
	}
	r, err := newRun(t, strings.Replace(exampleMetadata, "enabled: true", "enabled: false", 1), nil)
	require.NoError(t, err)
	require.Nil(t, r.instance, "a gadget that does not ask for it")
	_, err = newRun(t, strings.Replace(exampleMetadata, "source: in_use", "source: none", 1), api.ParamValues{"live": "true"})
	require.ErrorContains(t, err, `the gadget has no data source "none"`)
}

// A run without the gadget's maps must end and release its resources.
func TestStartFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, missing := range []string{"unwound", "capture_settings", "capture_counts", "ig_ustack", "live_allocations", "live_execs"} {
		r, err := newRun(t, exampleMetadata, api.ParamValues{"live": "true"})
		require.NoError(t, err)
		r.load(t, missing)
		require.NoError(t, r.Start(r.GadgetContext))
		require.Error(t, r.Context().Err(), "the run ends")
		require.Contains(t, r.log.String(), fmt.Sprintf(`the gadget has no map \"%s\"`, missing))
		emit(t, r.sources["in_use"])
		require.NoError(t, r.Stop(r.GadgetContext))
		require.NoError(t, r.PostStop(r.GadgetContext))
		require.NoError(t, r.Close(r.GadgetContext))
	}
	// The maps have the wrong type.
	for _, name := range []string{"unwound", "capture_settings", "live_allocations", "live_execs"} {
		r, err := newRun(t, exampleMetadata, api.ParamValues{"live": "true"})
		require.NoError(t, err)
		r.load(t)
		m, _ := r.GetVar(operators.MapPrefix + "ig_ustack")
		r.SetVar(operators.MapPrefix+name, m)
		require.NoError(t, r.Start(r.GadgetContext))
		require.Error(t, r.Context().Err(), name)
		require.NoError(t, r.Stop(r.GadgetContext))
	}
}

// A run that fails late in Start must release its resources.
func TestStartFailsLate(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := newRun(t, exampleMetadata, nil)
	require.NoError(t, err)
	r.load(t)
	r.classifier.kinds = &kinds{others: &kindOthers{name: "not_locks"}}
	require.NoError(t, r.Start(r.GadgetContext))
	require.Contains(t, r.log.String(), `the gadget has no map \"not_locks\"`)
	require.Error(t, r.Context().Err(), "the run ends")
	another := new(names.Namer)
	require.Same(t, another, r.op.names.Acquire(func() *names.Namer { return another }), "the run's own was given back")
	_, err = r.reader.Read()
	require.ErrorIs(t, err, ringbuf.ErrClosed)
	require.NoError(t, r.Stop(r.GadgetContext))
	require.NoError(t, r.PostStop(r.GadgetContext))
}

// TestRun is a complete run, with captures in the kernel's format, and several calls of Stop.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, live := range []string{"false", "true"} {
		r, err := newRun(t, exampleMetadata, api.ParamValues{"live": live})
		require.NoError(t, err)
		source := r.sources[map[string]string{"false": "allocations", "true": "in_use"}[live]]
		sum := uint64(0)
		require.NoError(t, source.SubscribeArray(func(_ datasource.DataSource, array datasource.DataArray) error {
			for i := range array.Len() {
				n, err := source.GetField("bytes").Uint64(array.Get(i))
				require.NoError(t, err)
				sum += n
			}
			return nil
		}, 0))
		emit(t, source) // before the maps exist
		r.load(t)
		v, _ := r.GetVar(operators.MapPrefix + "capture_counts")
		counts := make([]kernelCounts, ebpf.MustPossibleCPU())
		counts[0] = kernelCounts{Events: 50, Lost: 20, LostWeight: 1000, LostEvents: 30, Full: 1}
		require.NoError(t, v.(*ebpf.Map).Put(uint32(0), counts))
		require.NoError(t, r.Start(r.GadgetContext))
		require.NoError(t, r.Context().Err())
		x := example{id: 1, comm: "shop", bytes: 77, calls: 1}
		if live == "true" {
			m, _ := r.GetVar(operators.MapPrefix + "live_allocations")
			require.NoError(t, m.(*ebpf.Map).Put(&addressKey{Address: 1, PID: 1}, &liveValue{x.id, x.bytes, x.calls}))
		}
		stopped := make(chan struct{})
		go func() { // reads the gadget's maps concurrently
			defer close(stopped)
			for range 20 {
				r.sums.handed()
				for _, row := range r.nextRows(t) {
					sum += read(t, row).bytes
				}
			}
		}()
		<-stopped
		require.NoError(t, r.PreStop(r.GadgetContext))
		require.True(t, r.ended.Load(), "the maps are read for the last time now, before Stop")
		require.NoError(t, r.Stop(r.GadgetContext))
		require.True(t, r.take(&waiting{data: x.data()}, true))
		require.True(t, r.take(&waiting{data: []byte{1}}, true))
		emit(t, source)
		require.NoError(t, r.Stop(r.GadgetContext))
		require.NoError(t, r.PostStop(r.GadgetContext))
		require.NoError(t, r.Close(r.GadgetContext))
		require.Contains(t, r.log.String(), "the gadget's maps are full")
		require.EqualValues(t, 1, r.counts.bad)
		require.Contains(t, r.log.String(), "50 events, 20 sampled: 1 added to rows, 0 inner calls, 0 of other kinds, 1 not decoded, 20 lost in the kernel; stacks: 0 from the unwinder, 0 from frame pointers, 1 missing")
		if live == "true" {
			require.EqualValues(t, 77, sum)
			require.Contains(t, r.log.String(), "a larger --live-entries, or a larger --sample-bytes")
			require.Contains(t, r.log.String(), "1 because the gadget's map was full")
		} else {
			require.EqualValues(t, 1077, sum, "and what found no room in the kernel")
		}
	}
}

// A stretch's lost captures must get the same weight as its other captures.
func TestLostInStretch(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := newRun(t, exampleMetadata, nil)
	require.NoError(t, err)
	r.load(t)
	require.NoError(t, r.Start(r.GadgetContext))
	require.NoError(t, r.PreStop(r.GadgetContext)) // stops the concurrent count
	lose := func(weight, events uint64) {
		v, _ := r.GetVar(operators.MapPrefix + "capture_counts")
		counts := make([]kernelCounts, ebpf.MustPossibleCPU())
		counts[0].LostWeight, counts[0].LostEvents = weight, events
		require.NoError(t, v.(*ebpf.Map).Put(uint32(0), counts))
		r.count()
	}
	lose(7, 1)
	require.NoError(t, r.control.Open(0.5))
	lose(1007, 3)
	rows := r.nextRows(t)
	require.Len(t, rows, 1, "what the stretch stands for is not known yet")
	require.Equal(t, readRow{comm: capturesFull, bytes: 7, calls: 1}, read(t, rows[0]))
	require.NoError(t, r.control.Close(4))
	rows = r.nextRows(t)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: capturesFull, bytes: 4000, calls: 8, stretches: true}, read(t, rows[0]))
	lose(1107, 4) // at the end of the stretch
	rows = r.nextRows(t)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: capturesFull, bytes: 400, calls: 4, stretches: true}, read(t, rows[0]))
	lose(2107, 5)
	rows = r.nextRows(t)
	require.Len(t, rows, 1)
	require.Equal(t, readRow{comm: capturesFull, bytes: 1000, calls: 1}, read(t, rows[0]), "of a process that is sampled permanently")
	require.NotContains(t, r.log.String(), "the gadget's maps are full")
	require.NoError(t, r.Stop(r.GadgetContext))
}

// TestLastCaptures requires that captures that are still in the ring buffer at the end of a run are read, however many they are.
func TestLastCaptures(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := newRun(t, exampleMetadata, nil)
	require.NoError(t, err)
	r.load(t)
	require.NoError(t, r.Start(r.GadgetContext))
	require.NoError(t, r.PreStop(r.GadgetContext)) // from here on, the test calls the methods itself
	const captures, size, withoutWakeup = 10_000, 64, 1
	v, _ := r.GetVar(operators.MapPrefix + "unwound")
	instructions := asm.Instructions{asm.LoadMapPtr(asm.R1, v.(*ebpf.Map).FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -size), asm.Mov.Imm(asm.R3, 0)}
	for at := int16(8); at <= size; at += 8 {
		instructions = append(instructions, asm.StoreMem(asm.RFP, -at, asm.R3, asm.DWord))
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: append(instructions,
		asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, withoutWakeup), asm.FnRingbufOutput.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())})
	require.NoError(t, err)
	defer program.Close()
	_, err = program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: captures})
	require.NoError(t, err)
	r.finish()
	require.EqualValues(t, captures, r.counts.read)
	require.NoError(t, r.Stop(r.GadgetContext))
}

// A capture must wait for its stack, which can arrive before or after it, and then for the function names that decide its kind.
func TestWhole(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := newRun(t, strings.Replace(exampleMetadata, "    step:", "    inner: [calloc]\n    step:", 1), nil)
	require.NoError(t, err)
	r.load(t)
	require.NoError(t, r.Start(r.GadgetContext))
	require.NoError(t, r.PreStop(r.GadgetContext)) // from here on, the test calls the methods itself
	libc := &wire.Mapping{File: &wire.File{Name: "libc"}}
	frames := []*wire.Frame{{Type: wire.FrameNative, Mapping: libc, Address: 1}, {Type: wire.FrameNative, Mapping: libc, Address: 2}}
	st := &wire.Stack{ID: 40, Frames: frames}
	capture := func(id uint64) *waiting {
		return &waiting{data: example{id: id, comm: "shop", bytes: 8, calls: 1, pid: 1, unwound: id}.data()}
	}
	early, late, within, lost := capture(100), capture(101), capture(102), capture(103)
	r.arrive(wire.Unwound{ID: 100, Stack: st})
	require.False(t, r.take(late, false), "its stack has not come")
	require.False(t, r.take(early, false), "the functions are not known")
	r.fake.symbol = map[*wire.Frame]string{frames[0]: "malloc", frames[1]: "main"}
	require.True(t, r.take(early, false))
	r.arrive(wire.Unwound{ID: 101, Stack: st})
	require.True(t, r.take(late, false))
	r.fake.symbol[frames[1]] = "calloc"
	r.arrive(wire.Unwound{ID: 102, Stack: st})
	require.True(t, r.take(within, false))
	require.True(t, r.take(lost, true))
	rows := r.nextRows(t)
	require.Len(t, rows, 2)
	byID := map[uint64]uint64{}
	for _, row := range rows {
		byID[order.Uint64(row.key[40:])] = read(t, row).bytes
	}
	require.Equal(t, map[uint64]uint64{unwinder.RowID(st): 16, unwinder.RowID(nil): 8}, byID)
	require.Equal(t, [3]uint64{3, 1, 1}, [3]uint64{r.counts.added, r.counts.inner, r.counts.late})
	require.Empty(t, r.arrived)
	r.arrive(wire.Unwound{ID: 104, Stack: st})
	require.Len(t, r.arrived, 1)
	r.arrived[104] = arrival{st, time.Now().Add(-stackPatience)}
	r.retry(0)
	require.Empty(t, r.arrived, "of no capture")

	buffer := capture(105).data // the reader reuses its buffer
	r.wait(waiting{data: buffer})
	copy(buffer, capture(106).data)
	r.wait(waiting{data: buffer})
	for _, id := range []uint64{105, 106} {
		r.arrive(wire.Unwound{ID: id, Stack: st})
	}
	r.retry(stackPatience)
	require.Empty(t, r.waiting)
	require.NoError(t, r.Stop(r.GadgetContext))
}
