package otelprofiles

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// These times are shorter, because several tests wait for files that do not respond.
func init() { openWaitDaemon, failedInterval = 200*time.Millisecond, 50*time.Millisecond }

// ReportCounts is for the tests outside of the package.
var ReportCounts = Counts.report

// inside runs a gadget with one exporter and receiver for each of settings, and calls start with the instance. No interval ends
// before the gadget.
func inside(t *testing.T, g *gadgettest.Gadget, start func(inst *instance), settings ...string) []*receiver.Receiver {
	t.Helper()
	var receivers []*receiver.Receiver
	yaml, names := "operator: {otel-profiles: {exporters: {", []string{}
	for i, more := range settings {
		r, err := receiver.Start(receiver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		receivers, names = append(receivers, r), append(names, fmt.Sprint("e", i))
		yaml += fmt.Sprintf("e%d: {exporter: otlp-grpc, endpoint: %q, insecure: true, %s}, ", i, r.Addr(), more)
	}
	gadgettest.Config(t, yaml+"}}}")
	op := New()
	require.NoError(t, op.Init(nil))
	g.Start = func(g *gadgettest.Gadget) {
		require.Len(t, op.live, 1)
		for inst := range op.live {
			start(inst)
		}
		g.Context.Cancel()
	}
	require.NoError(t, g.Make(t.Context(), op).Run(gadgettest.Params(strings.Join(names, ","), ParamInterval, "1h", ParamCheck, "false")))
	for _, r := range receivers {
		require.Empty(t, r.Findings())
	}
	return receivers
}

// emit sends a row of a thread.
func emit(t *testing.T, g *gadgettest.Gadget, thread, leaf string, n uint64) {
	t.Helper()
	p, err := g.Source.NewPacketArray()
	require.NoError(t, err)
	d := p.New()
	g.Fill(d, leaf, n)
	require.NoError(t, g.Source.GetField("proc.comm").PutString(d, thread))
	p.Append(d)
	require.NoError(t, g.Source.EmitAndRelease(p))
}

// threads returns the sums by thread name, which can be "".
func threads(r *receiver.Receiver) map[string]int64 {
	sums := map[string]int64{}
	for _, s := range r.Samples() {
		sums[s.Attributes["thread.name"]] += s.Values[0]
	}
	return sums
}

// If nearly all stacks end too early, the log must say how this gadget collects whole stacks.
func TestStacksWithoutOutermostFunctions(t *testing.T) {
	for otel, want := range map[bool]string{
		false: "with --unwind=auto or --unwind=whole, this project's gadgets do not need frame pointers, if this machine allows that",
		true:  "with --collect-otel-stack, gadgets that attach to perf events, kprobes or uprobes do not need frame pointers",
	} {
		g := &gadgettest.Gadget{}
		inside(t, g, func(inst *instance) {
			inst.otelStacks = otel
			rows := func(whole, incomplete int64) string {
				var c Counts
				c.Fates[profile.Whole], c.Fates[profile.Incomplete] = whole, incomplete
				inst.pipelines[0].reportStacks(c)
				return g.Log.String()
			}
			const line = "nearly all stacks lack their outermost functions, probably because the programs have no frame pointers; "
			require.NotContains(t, rows(10, 90), line)
			require.Contains(t, rows(1, 99), line+want)
		}, "compression: none")
	}
}

// Two rows that differ in one attribute must be equal for an exporter that drops the attribute, and distinct for another
// exporter.
func TestRowsAreKeyedForEachExporter(t *testing.T) {
	g := &gadgettest.Gadget{}
	rs := inside(t, g, func(*instance) {
		emit(t, g, "worker-0", "leaf", 1)
		emit(t, g, "worker-1", "leaf", 2)
	}, "attributes: [thread.name=drop]", "")
	require.Equal(t, map[string]int64{"": 3}, threads(rs[0]))
	require.Equal(t, map[string]int64{"worker-0": 1, "worker-1": 2}, threads(rs[1]))
}

// If the second exporter's pipeline panics, only this exporter must lose the row.
func TestPanicCostsARow(t *testing.T) {
	g := &gadgettest.Gadget{}
	rs := inside(t, g, func(inst *instance) {
		emit(t, g, "worker", "leaf_before", 1)
		first, second := inst.pipelines[0], inst.pipelines[1]
		plan := second.plan
		second.plan = nil
		emit(t, g, "worker", "leaf", 1)
		second.plan = plan
		require.Empty(t, first.counts().Dropped)
		require.Equal(t, map[Reason]int64{ReasonPanic: 1}, second.counts().Dropped)
		emit(t, g, "worker", "leaf_after", 1)
	}, "attributes: [thread.name=drop]", "")
	require.Equal(t, map[string]int64{"": 3}, threads(rs[0]))
	require.Equal(t, map[string]int64{"worker": 2}, threads(rs[1]))
	require.Contains(t, g.Log.String(), "please report this")
}

// A field with a different value in each row must not become arbitrarily many attributes. Values that one interval omits can be
// in the next interval.
func TestCapCountsPerWindow(t *testing.T) {
	g := &gadgettest.Gadget{}
	rs := inside(t, g, func(inst *instance) {
		for i := range 3 {
			emit(t, g, fmt.Sprint("worker-", i), "leaf", 1)
		}
		inst.flush()
		emit(t, g, "worker-2", "leaf", 10)
	}, "max_values_per_attribute: 2", "max_values_per_attribute: 2, attributes: [thread.name=resource]")
	want := map[string]int64{"worker-0": 1, "worker-1": 1, "": 1, "worker-2": 10}
	require.Equal(t, want, threads(rs[0]))
	resources := map[string]int64{}
	for _, s := range rs[1].Samples() {
		resources[s.Resource["thread.name"]] += s.Values[0]
	}
	require.Equal(t, want, resources)
	require.Contains(t, g.Log.String(), "max_values_per_attribute")
}

// fill emits rows with new stacks until each exporter has dropped some. It returns the highest memory of the sums.
func fill(t *testing.T, g *gadgettest.Gadget, inst *instance) (most int64) {
	t.Helper()
	full := func() bool {
		for _, p := range inst.pipelines {
			if p.counts().Dropped[ReasonFull]+p.counts().Dropped[ReasonResourceLimit] == 0 {
				return false
			}
		}
		return true
	}
	for i := 0; !full(); i++ {
		p, err := g.Source.NewPacketArray()
		require.NoError(t, err)
		for j := range 100 {
			d := p.New()
			g.Fill(d, fmt.Sprintf("leaf_%d_%d", i, j), 1)
			p.Append(d)
		}
		require.NoError(t, g.Source.EmitAndRelease(p))
		sum := int64(0)
		for _, p := range inst.pipelines {
			sum += p.agg.Usage()
		}
		most = max(most, sum)
	}
	return most
}

func smallSource(t *testing.T) {
	t.Helper()
	old := maxSourceBytes
	t.Cleanup(func() { maxSourceBytes = old })
	maxSourceBytes = 1 << 20
}

// A data source's exporters must share its memory limit.
func TestExportersShareMemory(t *testing.T) {
	smallSource(t)
	g := &gadgettest.Gadget{Type: datasource.TypeArray}
	inside(t, g, func(inst *instance) {
		most := fill(t, g, inst)
		require.Greater(t, most, maxSourceBytes/2)
		require.Less(t, most, maxSourceBytes*5/4)
	}, "", "", "", "")
}

// A row between the last flush and the end must not be lost.
func TestRowsOfTheLastMoment(t *testing.T) {
	smallSource(t)
	g := &gadgettest.Gadget{}
	late := 0
	g.Logged = func(g *gadgettest.Gadget, line string) {
		if strings.Contains(line, "too many distinct stacks") { // logged by a flush that has passed on its window
			late++
			emit(t, g, "late", "leaf", 1)
		}
	}
	rs := inside(t, g, func(inst *instance) { fill(t, g, inst) }, "")
	require.Positive(t, late)
	require.EqualValues(t, late, threads(rs[0])["late"], g.Log.String())
}
