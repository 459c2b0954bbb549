package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

// interval is one interval of a run that records memory in use. Its times are seconds after noon.
type interval struct {
	from, to float64
	inUse    map[string]int64 // by service
}

func after(seconds float64) time.Time {
	return noon.Add(time.Duration(seconds * float64(time.Second)))
}

// record writes an interval as a state.
func (m *machine) record(one interval) {
	w := workload.New(m.t, "profile_alloc")
	for service, value := range one.inUse {
		w.Add(service, "main", []uint64{1, uint64(service[0])}, value)
	}
	for _, msg := range w.Flush(after(one.from), after(one.to)) {
		data := &profilespb.ProfilesData{}
		require.NoError(m.t, proto.Unmarshal(msg.Body, data))
		for p := range dictionary.Profiles(data) {
			p.TimeUnixNano, p.DurationNano = p.TimeUnixNano+p.DurationNano, 0
			data.Dictionary.StringTable[p.SampleType.TypeStrindex] = "inuse_space"
		}
		msg.Body, _ = proto.Marshal(data) // the message was just decoded
		require.Equal(m.t, attempt.Accepted, m.w.Send(m.t.Context(), msg).Verdict)
	}
}

// inUse returns each service's sum.
func inUse(a history.Answer) map[string]int64 {
	out := map[string]int64{}
	for service, stacks := range byService(a.Request) {
		for _, v := range stacks {
			out[service] += v
		}
	}
	return out
}

// TestStates requires that an answer contains the states at its end. A state describes all services of a run, and runs have their
// own intervals.
func TestStates(t *testing.T) {
	type values = map[string]int64
	for _, test := range []struct {
		name      string
		intervals []interval
		want      values
		list      values // if it differs
	}{
		{name: "one run, and a late request", intervals: []interval{
			{0, 10, values{"shop": 20, "db": 30}}, {20, 30, values{"shop": 10, "db": 20}}, {10, 20, values{"shop": 50, "db": 40}},
		}, want: values{"shop": 10, "db": 20}},
		{name: "a service has ended", intervals: []interval{
			{0, 10, values{"shop": 20, "db": 30}}, {10, 20, values{"shop": 10}},
		}, want: values{"shop": 10}, list: values{"shop": 10, "db": 30}},
		{name: "a service has ended, and its last request is late", intervals: []interval{
			{0, 10, values{"shop": 20, "db": 30}}, {20, 30, values{"shop": 10}}, {10, 20, values{"shop": 50, "db": 40}},
		}, want: values{"shop": 10}, list: values{"shop": 10, "db": 40}},
		{name: "a service ended before an interval that is longer than the next one", intervals: []interval{
			{0, 10.2, values{"shop": 20, "db": 30}}, {10.2, 20, values{"shop": 10}}, {20, 20.1, values{"shop": 11}},
		}, want: values{"shop": 11}, list: values{"shop": 11, "db": 30}},
		{name: "two runs", intervals: []interval{
			{0, 10, values{"shop": 20, "mail": 1}}, {5, 15, values{"db": 30, "web": 2}}, {10, 20, values{"shop": 40}}, {15, 25, values{"db": 50}},
		}, want: values{"shop": 40, "db": 50}, list: values{"shop": 40, "db": 50, "mail": 1, "web": 2}},
		{name: "two runs with different intervals", intervals: []interval{
			{0, 300, values{"shop": 20}}, {570, 580, values{"db": 30}}, {580, 590, values{"db": 50}},
		}, want: values{"shop": 20, "db": 50}},
		{name: "two runs end together, and the last interval of one is short", intervals: []interval{
			{0, 10, values{"shop": 20}}, {5, 15, values{"db": 30}}, {10, 10.3, values{"shop": 40}}, {15, 15.5, values{"db": 50}},
		}, want: values{"shop": 40, "db": 50}},
		{name: "a run ended long ago", intervals: []interval{
			{0, 10, values{"shop": 20}}, {590, 600, values{"db": 50}},
		}, want: values{"db": 50}, list: values{"shop": 20, "db": 50}},
		{name: "a run begins again", intervals: []interval{
			{0, 10, values{"shop": 20}}, {13, 23, values{"shop": 50}},
		}, want: values{"shop": 50}},
		{name: "the clock is set back by an hour", intervals: []interval{
			{0, 10, values{"shop": 20, "db": 30}}, {10, -3590, values{"shop": 50}}, {-3590, -3580, values{"shop": 70}},
		}, want: values{"shop": 70}, list: values{"shop": 50, "db": 30}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, limit)
			for _, one := range test.intervals {
				m.record(one)
			}
			q := history.Query{From: noon.Add(-2 * time.Hour), To: noon.Add(time.Hour)}
			a := read(t, m.dir, q)
			require.Equal(t, test.want, inUse(a))
			a.Request = receiver.Newest([]*collectorpb.ExportProfilesServiceRequest{a.Request})[0]
			require.Equal(t, test.want, inUse(a), "also after another program has read the answer")
			bounded, err := history.ReadBounded(m.dir, q, 5)
			require.NoError(t, err)
			require.Equal(t, test.want, inUse(bounded), "with a limit")

			// A list shows each service's last value, also if the service has ended. So does a query for this service.
			all := history.Total(listed(t, m.dir)).Sums
			require.Equal(t, all, a.Summary.Sums)
			last := values{}
			for _, s := range all {
				require.True(t, s.State)
				last[s.Service] = s.Value
			}
			want := test.list
			if want == nil {
				want = test.want
			}
			require.Equal(t, want, last)
			if test.name == "the clock is set back by an hour" {
				return // a list does not know the intervals
			}
			for service, value := range want {
				q.Service = service
				require.Equal(t, values{service: value}, inUse(read(t, m.dir, q)))
			}
		})
	}
}

// TestStatesReplaceEachOther requires that only the newest states count for an answer's limit, however many intervals there are.
func TestStatesReplaceEachOther(t *testing.T) {
	m := newMachine(t, limit)
	values := map[string]int64{}
	for i := range 12 {
		values[string(rune('a'+i))] = 20
	}
	for i := range 20 {
		m.record(interval{float64(i), float64(i + 1), values})
	}
	a, err := history.ReadBounded(m.dir, history.Query{From: noon, To: noon.Add(time.Hour)}, 40)
	require.NoError(t, err)
	require.Zero(t, a.Rare)
	require.Equal(t, values, inUse(a))
}

// A range contains the states whose interval ends in the range, and the last ones count.
func TestStatesInARange(t *testing.T) {
	m := newMachine(t, limit)
	for i := range 4 {
		at := float64(10 * i)
		m.record(interval{at, at + 10, map[string]int64{"shop": int64(i + 1)}})
	}
	for to, want := range map[float64]map[string]int64{10: {}, 15: {"shop": 1}, 20: {"shop": 1}, 35: {"shop": 3}, 100: {"shop": 4}} {
		require.Equal(t, want, inUse(read(t, m.dir, history.Query{From: noon, To: after(to)})), to)
	}
}
