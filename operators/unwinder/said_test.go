package unwinder

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// saying joins events that have traces and labels, and returns their counts by the text of a row's fields.
func saying(t *testing.T, s sayings, fields []string, events []wire.Said) (map[string]uint64, *unwindInstance) {
	t.Helper()
	ds := joinedSource(t)
	i := &unwindInstance{Stacks: &Stacks{}, joiner: newJoiner(joinLayout)}
	i.joiner.said = s
	require.NoError(t, i.joiner.said.register(ds))
	i.rows.stacks = map[uint64]*wire.Stack{}
	i.rows.kernel = func() *stack.Kernel { return nil }
	require.NoError(t, i.fill(ds))
	sums := map[string]uint64{}
	require.NoError(t, ds.SubscribeArray(func(_ datasource.DataSource, rows datasource.DataArray) error {
		for n := range rows.Len() {
			text := ""
			for _, name := range fields {
				value, err := ds.GetField(name).String(rows.Get(n))
				require.NoError(t, err)
				text += value + "|"
			}
			count, _ := ds.GetField("count").Uint64(rows.Get(n))
			sums[text] += count
		}
		return nil
	}, 50000))
	stack := &wire.Stack{ID: 1, Frames: []*wire.Frame{{Type: wire.FrameGo, Function: "main.main"}}}
	for n, said := range events {
		id := uint64(n + 1)
		i.joiner.row(record(id, 7, 40, 1<<(n%8)), time.Now())
		i.joiner.stack(wire.Unwound{ID: id, Stack: stack, Proc: &wire.Proc{PID: 1}, Said: said}, time.Now())
	}
	packet, err := ds.NewPacketArray()
	require.NoError(t, err)
	require.NoError(t, ds.EmitAndRelease(packet))
	return sums, i
}

// Requested labels distinguish events. Other labels do not.
func TestLabels(t *testing.T) {
	sums, _ := saying(t, sayings{labels: []string{"tenant", "route"}}, []string{"label.tenant", "label.route"}, []wire.Said{
		{}, {}, {Labels: []wire.Label{{Key: "tenant", Value: "x"}}},
		{Labels: []wire.Label{{Key: "route", Value: "x"}, {Key: "other", Value: "y"}}}, {Labels: []wire.Label{{Key: "other", Value: "z"}}, TraceID: [16]byte{1}},
	})
	require.Equal(t, map[string]uint64{"||": 1 + 2 + 16, "x||": 4, "|x|": 8}, sums)
}

// The number of spans between two packets is limited. Further events have no span, and are counted.
func TestSpans(t *testing.T) {
	events := make([]wire.Said, maxSpans+7)
	for n := range events[:maxSpans+5] {
		events[n].TraceID[0] = 0xab
		binary.BigEndian.PutUint64(events[n].SpanID[:], uint64(n+1))
	}
	events[maxSpans+5] = events[0] // a known span, and then none
	sums, i := saying(t, sayings{spans: true}, []string{"trace_id", "span_id"}, events)
	require.Len(t, sums, maxSpans+1)
	require.Contains(t, sums, "ab000000000000000000000000000000|0000000000000001|")
	require.Contains(t, sums, "||")
	require.EqualValues(t, 5, i.joiner.said.unlinked, "an event without a span lacks none")
	require.Empty(t, i.joiner.said.seen)
}

// Invalid values are refused with the name of the parameter, and so are labels that can never match.
func TestAsked(t *testing.T) {
	for _, c := range []struct{ key, value, refused string }{
		{ParamLabels, "a b", `"a b"`},
		{ParamLabels, "tenant,exactly_sixteen_", `"exactly_sixteen_" is not a valid label name: use at most 15`},
		{ParamLabels, "fifteen_letters, span_id,trace_id", ""},
		{ParamLanguages, "python, cobol", `"cobol"`},
		{ParamLanguages, "python, ruby", ""},
		{ParamScale, "9", "memory scale: got 9"},
		{ParamScale, "-1", `"memory-scale"`},
		{ParamSpans, "perhaps", `"spans"`},
		{ParamNames, "no!", `"native-names"`}, {ParamSpans, "", ""},
	} {
		values := api.ParamValues{}
		for _, p := range unwindParams() {
			values[p.Key] = p.DefaultValue
		}
		values[c.key] = c.value
		_, err := readAsked(values)
		if c.refused == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.refused)
	}
}
