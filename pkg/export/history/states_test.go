package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

// TestStates requires that an answer and a list only contain the newest of several states, such as memory in use.
func TestStates(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_alloc", "shop", "db")
	for _, state := range []struct {
		samples int
		at      time.Duration
	}{{50, 0}, {70, 10 * time.Second}, {30, 30 * time.Second}, {90, 20 * time.Second}} { // the last one arrives late
		w.Sample(state.samples)
		at := noon.Add(state.at)
		for _, msg := range w.Flush(at, at.Add(time.Second)) {
			data := &profilespb.ProfilesData{}
			require.NoError(t, proto.Unmarshal(msg.Body, data))
			for p := range dictionary.Profiles(data) {
				p.TimeUnixNano, p.DurationNano = uint64(at.UnixNano()), 0
				data.Dictionary.StringTable[p.SampleType.TypeStrindex] = "inuse_space"
			}
			msg.Body, _ = proto.Marshal(data) // the message was just decoded
			require.Equal(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
		}
	}
	newest := int64(0)
	for _, stacks := range byService(read(t, m.dir, history.Query{From: noon}).Request) {
		for _, v := range stacks {
			newest += v
		}
	}
	require.EqualValues(t, 30, newest)
	sum := int64(0)
	for _, s := range history.Total(listed(t, m.dir)).Sums {
		require.True(t, s.State)
		sum += s.Value
	}
	require.EqualValues(t, 30, sum)
}
