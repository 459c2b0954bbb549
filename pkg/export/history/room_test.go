package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

// A busy machine's day must keep its timeline. Each step has its exact sum, although rare stacks lose their callers. Each
// sample counts as rare once.
func TestLineOfTime(t *testing.T) {
	m := newMachine(t, limit)
	var services []string
	for i := range 20 {
		services = append(services, fmt.Sprint("service-", i))
	}
	w := workload.New(t, "profile_cpu", services...)
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
	got, whole := map[int]int64{}, map[int]int64{} // whole counts the samples with callers
	for _, s := range receiver.Resolve(a.Request) {
		step := int(s.Start.Sub(noon) / length)
		got[step] += s.Total()
		entries++
		if s.Stack[len(s.Stack)-1].Name == history.RareStacks {
			rare++
			require.Empty(t, s.Attributes)
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

	// If a step has no room for all services, the steps become longer.
	a = ask(1000)
	require.Greater(t, a.Step, length)
	got = map[int]int64{}
	for _, s := range receiver.Resolve(a.Request) {
		got[0] += s.Total()
	}
	require.Equal(t, map[int]int64{0: rows}, got)
}

// A stack that is in all steps must keep its callers, although each step has larger stacks. The largest stack of a single step
// must also keep its callers.
func TestSteadyStacks(t *testing.T) {
	m := newMachine(t, limit)
	const steps, steady, once = 60, 20, 100 // steady stacks are in all steps, and once new stacks in each step
	for range steps {
		w := workload.New(t, "profile_cpu", "shop")
		from := m.now
		m.pass(10 * time.Second)
		for i := range steady {
			w.Add("shop", "main", []uint64{2, uint64(i)}, 1)
		}
		for i := range once {
			w.Add("shop", "main", []uint64{1, uint64(from.Unix()*1000) + uint64(i)}, 2)
		}
		w.Add("shop", "main", []uint64{1, uint64(from.Unix()*1000) + once}, 3)
		for _, msg := range w.Flush(from, m.now) {
			require.Equal(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
		}
	}
	a, err := history.ReadBounded(m.dir, history.Query{From: noon, To: m.now}, steps*(steady+once)*2/3)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, a.Step)
	whole := map[int64]int{} // samples with callers, by value
	for _, s := range receiver.Resolve(a.Request) {
		if s.Stack[len(s.Stack)-1].Name != history.RareStacks {
			whole[s.Total()]++
		}
	}
	require.Equal(t, steps*steady, whole[1], "of steady stacks")
	require.Equal(t, steps, whole[3], "the largest of each step")
	require.Less(t, whole[2], steps*once)
	require.Positive(t, a.Rare)
}
