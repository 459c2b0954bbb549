package otelprofiles

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// late provides frames that get their names after several requests.
type late struct{ missing int }

func (l *late) Frames(dst []profile.Frame, last bool) ([]profile.Frame, profile.Fate, bool) {
	if !last && l.missing > 0 {
		l.missing--
	}
	if l.missing > 0 {
		return append(dst, profile.Frame{Name: "[unknown]"}), profile.Whole, false
	}
	return append(dst, profile.Frame{Name: "main.heavy"}), profile.Whole, true
}

func (l *late) Size() int { return 100 }

// A due flush must wait for names, but only for a limited time.
func TestWindowWaitsForNames(t *testing.T) {
	due := time.Now()
	for _, tc := range []struct {
		name     string
		missing  int
		interval time.Duration
		waits    time.Duration
	}{
		{"all are there", 0, 10 * time.Second, 0},
		{"some moments", 5, 10 * time.Second, 4 * namePollInterval},
		{"they never come", 1 << 30, 10 * time.Second, 2500*time.Millisecond + namePollInterval},
		{"a long interval", 1 << 30, time.Minute, lateNames + namePollInterval},
		{"a short interval", 1 << 30, time.Second, 250*time.Millisecond + namePollInterval},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agg := profile.New(profile.Config{Types: []profile.ValueType{{Type: "samples", Unit: "count"}}})
			p := &pipeline{agg: agg, interval: tc.interval, next: due, since: due.Add(-tc.interval)}
			agg.SetResource(1, profile.Resource{})
			s := profile.Sample{Stack: []profile.Frame{{Name: "[unknown]"}}, Later: &late{tc.missing}, LaterTo: 1}
			require.Equal(t, profile.Added, agg.Insert(1, 1, s, []int64{1}, 0))

			now := due
			for p.waits(now) {
				require.Equal(t, now.Add(namePollInterval), p.due())
				now = p.due()
			}
			require.Equal(t, tc.waits, now.Sub(due))
			p.next = due.Add(tc.interval)
			require.Equal(t, p.next, p.due(), "the next window ends as if nothing had been waited for")
		})
	}
}

// At a terminal, a run's end must wait for the names in its last stacks.
func TestEndWaitsForNames(t *testing.T) {
	rs := inside(t, &gadgettest.Gadget{}, func(inst *instance) {
		p := inst.pipelines[0]
		p.read.Add(1)
		p.agg.SetResource(1, profile.Resource{})
		s := profile.Sample{Stack: []profile.Frame{{Name: "[unknown]"}}, Later: &late{3}, LaterTo: 1}
		require.Equal(t, profile.Added, p.agg.Insert(1, 1, s, []int64{1}, 0))
	}, "attributes: []")
	require.Equal(t, "main.heavy", rs[0].Samples()[0].Stack[0].Name)
}

// A window that fills up must be flushed before its interval ends, but not more than once a second.
func TestFullWindowIsDueEarly(t *testing.T) {
	now := time.Now()
	agg := profile.New(profile.Config{Types: []profile.ValueType{{Type: "samples", Unit: "count"}}, MaxBytes: 64 << 10})
	p := &pipeline{agg: agg, since: now, next: now.Add(time.Hour)}
	require.Equal(t, p.next, p.due())
	agg.SetResource(1, profile.Resource{})
	for i := uint64(0); !agg.NearFull(); i++ {
		agg.Insert(1, i, profile.Sample{Stack: []profile.Frame{{Name: fmt.Sprint("f", i)}}}, []int64{1}, 0)
	}
	require.Equal(t, now.Add(time.Second), p.due())
	p.next = now.Add(time.Millisecond)
	require.Equal(t, p.next, p.due(), "the interval ends earlier")
}

// The last line of a run must name the missing parts of stacks, as shares of the rows in closed windows.
func TestSharesOfStacks(t *testing.T) {
	require.Empty(t, Counts{Fates: profile.Fates{profile.Whole: 3, profile.NoStack: 1}}.stacks())
	require.Equal(t, "; stacks: 10.0 % partly lost, 20.0 % truncated (too deep, or the unwinder could not continue), 30.0 % without their outermost functions",
		Counts{Fates: profile.Fates{profile.Whole: 3, profile.NoStack: 1, profile.Lost: 1, profile.Truncated: 2, profile.Incomplete: 3}}.stacks())
	require.Empty(t, Counts{}.frames())
	require.Equal(t, "; 8 user frames in distinct stacks: 50.0 % with a name, 37.5 % with only a file (no symbols 2, outside any symbol 1), 12.5 % with neither (process gone 1)",
		Counts{Frames: [names.NumStates]int64{names.Named: 4, names.NoSymbols: 2, names.Outside: 1, names.Gone: 1}}.frames())
}

// Debug files are fetched only with a server.
func TestDebuginfod(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	require.Nil(t, tableOptions(config.Names{Debuginfod: config.Debuginfod{Cache: cache}}).Fetch)
	require.NoDirExists(t, cache)
	require.NotNil(t, tableOptions(config.Names{Debuginfod: config.Debuginfod{URLs: []string{"http://127.0.0.1:1"}, Cache: cache}}).Fetch)
	require.DirExists(t, cache)
}

// If a window is full and flushed early, the schedule must not shift. After a suspension, there must be one flush.
func TestSchedule(t *testing.T) {
	due := time.Now()
	for late, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 0: 10 * time.Second, 3 * time.Second: 10 * time.Second, time.Hour: time.Hour + 10*time.Second,
	} {
		p := &pipeline{interval: 10 * time.Second, next: due}
		p.schedule(due.Add(late))
		require.Equal(t, want, p.next.Sub(due), "%v", late)
	}
}

// TestWindowStart requires that a window does not include the time of a suspend, or a jump of the clock.
func TestWindowStart(t *testing.T) {
	end := time.Now()
	since := end.Add(-10 * time.Second)
	for jump, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 5 * time.Second: 15 * time.Second, 8 * time.Hour: 10 * time.Second, -time.Hour: 10*time.Second - time.Hour} {
		now := end // its wall clock differs, but not its monotonic clock; see the comment of time.Time
		*(*uint64)(unsafe.Pointer(&now)) += uint64(jump/time.Second) << 30
		require.Equal(t, want, now.Round(0).Sub(windowStart(since, now).Round(0)), "%v", jump)
	}
}

// Each setting of an exporter must change what the aggregator writes, and nothing else.
func TestAggregatorConfig(t *testing.T) {
	d := fieldmap.Descriptor{Name: "memory", Types: []profile.ValueType{{Type: "alloc_space", Unit: "bytes"}}, Period: 1, Scope: profile.Scope{Name: "image"}}
	events, counted, last := d, d, d
	events.Timestamps, counted.Timestamps, counted.Counted, last.Last = true, true, true, true
	for _, tt := range []struct {
		cfg    config.Exporter
		d      fieldmap.Descriptor
		typ    datasource.Type
		change func(*profile.Config)
	}{
		{d: d, cfg: config.Exporter{StringAttributes: true}, change: func(c *profile.Config) { c.TextAttributes = true }},
		{d: d, cfg: config.Exporter{HashedMappings: true}, change: func(c *profile.Config) { c.HashedMappings = true }},
		{d: d, cfg: config.Exporter{DoubleFunctions: true}, change: func(c *profile.Config) { c.DoubleFunctions = true }},
		{d: d, cfg: config.Exporter{NameUnnamed: true}, change: func(c *profile.Config) { c.NameUnnamed = true }},
		{d: d, cfg: config.Exporter{HostServices: 7}, change: func(c *profile.Config) { c.HostServices = 7 }},
		{d: d, cfg: config.Exporter{NativeDefault: true}, change: func(c *profile.Config) { c.DefaultFrameType = profile.FrameNative }},
		{d: d, cfg: config.Exporter{NameLabel: true}, change: func(c *profile.Config) { c.NameLabel = "memory" }},
		{d: d, cfg: config.Exporter{SampleShape: "single"}, change: func(c *profile.Config) { c.Shape = profile.ShapeSingle }},
		{d: d, cfg: config.Exporter{SampleShape: "timestamps"}, change: func(c *profile.Config) { c.Shape = profile.ShapeTimestamps }},
		{d: events, change: func(c *profile.Config) { c.Shape = profile.ShapeEvents }},
		{d: events, cfg: config.Exporter{SampleShape: "sum"}},
		{d: counted, change: func(c *profile.Config) { c.Shape = profile.ShapeTimestamps }},
		{d: last, typ: datasource.TypeSingle, change: func(c *profile.Config) { c.Aggregation, c.State = profile.AggregateLast, true }},
		{d: last, typ: datasource.TypeArray, change: func(c *profile.Config) { c.Aggregation, c.State = profile.AggregateSnapshot, true }},
		{d: last, typ: datasource.TypeSingle, cfg: config.Exporter{SampleShape: "single"}, change: func(c *profile.Config) {
			c.Aggregation, c.Shape = profile.AggregateLast, profile.ShapeSingle
		}},
	} {
		want := profile.Config{Scope: d.Scope, SchemaURL: schemaURL, Types: d.Types, Period: 1}
		if tt.change != nil {
			tt.change(&want)
		}
		got := aggregatorConfig(tt.cfg, tt.d, tt.typ)
		require.NotNil(t, got.Demangle)
		got.Demangle = nil
		require.Equal(t, want, got)
	}
}
