package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

// A day of a busy machine keeps its line of time: each step has its exact sum, though rare stacks lose their callers. A sample is rare once.
func TestLineOfTime(t *testing.T) {
	m := newMachine(t, limit)
	var services []string
	for i := range 20 {
		services = append(services, fmt.Sprint("service-", i))
	}
	w := newWorkload(t, "profile_cpu", services...)
	const length = 20 * time.Minute // of a step of a day
	sent, rows := map[int]int64{}, int64(0)
	for m.now.Before(noon.Add(24 * time.Hour)) {
		step := int(m.now.Sub(noon) / length)
		n := m.interval(w, 500)
		sent[step], rows = sent[step]+n, rows+n
		m.pass(10*time.Minute - 10*time.Second)
	}
	const most = 10_000
	ask := func(most int) history.Answer {
		a, err := history.ReadBounded(m.dir, history.Query{From: noon, To: m.now}, most)
		require.NoError(t, err)
		body, err := proto.Marshal(a.Request)
		require.NoError(t, err)
		require.Empty(t, otlpcheck.CheckBytes(body))
		return a
	}
	a := ask(most)
	require.Equal(t, length, a.Step)
	samples, entries, rare := int64(0), int64(0), int64(0)
	got, whole := map[int]int64{}, map[int]int64{} // whole are those with callers
	for _, s := range receiver.Resolve(a.Request) {
		step := int(s.Start.Sub(noon) / length)
		got[step] += s.Total()
		entries++
		if s.Stack[len(s.Stack)-1].Name == history.RareStacks {
			rare++
		} else {
			whole[step]++
		}
	}
	for _, s := range a.Summary.Sums {
		samples += s.Samples
	}
	require.Equal(t, sent, got)
	require.Len(t, whole, 72, "each step has stacks")
	require.LessOrEqual(t, entries, int64(most))
	require.Positive(t, rare)
	require.LessOrEqual(t, rare, a.Rare)
	require.LessOrEqual(t, a.Rare+entries-rare, samples)

	// With more services than it has room for in each step, the steps are longer.
	a = ask(1000)
	require.Greater(t, a.Step, length)
	got = map[int]int64{}
	for _, s := range receiver.Resolve(a.Request) {
		got[0] += s.Total()
	}
	require.Equal(t, map[int]int64{0: rows}, got)
}
