package history_test

import (
	"flag"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

var cost = flag.Bool("cost", false, "measure what a day of 16 busy CPUs costs")

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestCost writes a day of 16 busy CPUs, sampled 49 times a second. It then queries one hour and the whole day.
func TestCost(t *testing.T) {
	if !*cost {
		t.Skip("-cost measures")
	}
	const perInterval = 16 * 49 * 10
	var services []string
	for i := range 20 {
		services = append(services, fmt.Sprint("service-", i))
	}
	w := workload.New(t, "profile_cpu", services...)
	m := newMachine(t, limit)
	var spent time.Duration
	samples, bytes, body := int64(0), int64(0), int64(0)
	for range 24 * 360 {
		from := m.now
		m.pass(10 * time.Second)
		w.Sample(perInterval)
		for _, msg := range w.Flush(from, m.now) {
			samples += msg.Samples
			body += int64(len(msg.Body))
			before := cpu()
			out := m.w.Send(t.Context(), msg)
			spent += cpu() - before
			bytes += out.Sent
		}
		if m.running == 20*time.Minute-10*time.Second {
			t.Logf("the writer holds %d KiB", held(m)>>10)
		}
		if m.running == time.Hour {
			report(t, m, m.running.String(), spent, samples, bytes, body)
			ask(t, m, time.Hour)
		}
	}
	report(t, m, "a day", spent, samples, bytes, body)
	ask(t, m, time.Hour)
	ask(t, m, 24*time.Hour)
}

// held returns the memory that the writer needs between requests, which is its segment's dictionary.
func held(m *machine) uint64 {
	use := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := use()
	m.restart(limit)
	return before - min(before, use())
}

func report(t *testing.T, m *machine, what string, spent time.Duration, samples, bytes, body int64) {
	t.Logf("%s: %d samples in %d bytes of OTLP; on disk %d bytes, %.1f per sample; writer %.2f %% of a CPU", what, samples, body, bytes, float64(bytes)/float64(samples), 100*spent.Seconds()/m.running.Seconds())
}

func ask(t *testing.T, m *machine, since time.Duration) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, at := cpu(), time.Now()
	a, err := history.Read(m.dir, history.Query{From: m.now.Add(-since), To: m.now})
	require.NoError(t, err)
	took := time.Since(at)
	c = cpu() - c
	runtime.ReadMemStats(&after)
	n := 0
	for _, rp := range a.Request.ResourceProfiles {
		for _, p := range rp.ScopeProfiles[0].Profiles {
			n += len(p.Samples)
		}
	}
	t.Logf("since %s: %s, CPU %s; %d samples, steps of %s, %d stacks, %d rare; allocated %d MiB; in use %d MiB", since, took, c, n, a.Step, len(a.Request.Dictionary.StackTable), a.Rare, (after.TotalAlloc-before.TotalAlloc)>>20, after.HeapAlloc>>20)
}
