//go:build e2e

package locks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// seconds is how long the threads contend, sampleTime what --sample-time is: below most waits, which are then known
// one by one, and above those of take_short_mutex, which are drawn.
const (
	seconds    = 8
	sampleTime = 2000000
)

// waits are those of a function of the program.
type waits struct{ ns, calls int64 }

// lock says what is known of the waits of one function.
type lock struct {
	function string
	// calls is the function that it waits in, kind is the lock's.
	calls, kind string
	// within is the part that the seconds may differ by.
	within float64
}

var locks = []lock{
	{"take_mutex", "pthread_mutex_lock", "user_mutex", 0.05},
	// Some 3,000 of its waits are drawn, so that chance alone makes 2 %.
	{"take_short_mutex", "pthread_mutex_lock", "user_mutex", 0.1},
	{"read_table", "pthread_rwlock_rdlock", "user_rwlock", 0.05},
	{"write_table", "pthread_rwlock_wrlock", "user_rwlock", 0.05},
	{"count_pipe", "ioctl", "kernel_mutex", 0.05},
	{"take_shared", "pthread_mutex_lock", "user_mutex", 0.05},
}

// profileOf returns what is in the samples of a program. The types are those that Go's profiles of mutexes have.
func profileOf(t *testing.T, samples []receiver.Sample) (delays, contentions []receiver.Sample) {
	t.Helper()
	for _, s := range samples {
		switch typ := receiver.TypeOf(s); typ {
		case receiver.Type{Type: "delay", Unit: "nanoseconds", PeriodType: "contentions", PeriodUnit: "count", Period: 1}:
			delays = append(delays, s)
		case receiver.Type{Type: "contentions", Unit: "count", PeriodType: "contentions", PeriodUnit: "count", Period: 1}:
			contentions = append(contentions, s)
		default:
			require.Fail(t, "a type", "%v", typ)
		}
	}
	return delays, contentions
}

func byKind(samples []receiver.Sample) map[string]int64 {
	sums := map[string]int64{}
	for _, s := range samples {
		sums[s.Attributes["lock.kind"]] += s.Total()
	}
	return sums
}

// TestLocks compares the seconds of each function, and its share, with the program's own.
func TestLocks(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	for _, form := range []struct {
		name  string
		flags []string
	}{
		{"text", nil},
		{"ids", []string{"--format-stacks=false"}},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			r := profile(t, append([]string{"--sample-time=" + strconv.Itoa(sampleTime)}, form.flags...)...)
			delays, contentions := profileOf(t, r.samples)
			truth, found := int64(0), int64(0)
			for _, l := range locks {
				truth += r.truth[l.function].ns
				found += igtest.Total(igtest.Through(delays, l.function))
			}
			for _, l := range locks {
				l.require(t, r, igtest.Through(delays, l.function), igtest.Through(contentions, l.function), truth, found)
			}
			t.Logf("seconds by kind: %v", byKind(delays))
			requireIdle(t, delays)
			require.NotContains(t, byKind(delays), "user_futex")
			// The pool has a thousand waits a second, of which only the first are captured.
			require.Positive(t, r.captured.Other)
			// Stacks come once a second, and later on a busy machine.
			require.Less(t, r.captured.Other, int64(seconds*250), "the waits of the pool are left alone once they are known")
		})
	}
}

// requireIdle checks that threads without work wait for no lock. They may for the mutex of their condition, and for
// spinlocks of the kernel when they are woken.
func requireIdle(t *testing.T, delays []receiver.Sample) {
	t.Helper()
	for _, s := range append(igtest.Through(delays, "wait_for_job"), igtest.Through(delays, "wait_for_work")...) {
		kind := s.Attributes["lock.kind"]
		switch {
		case strings.HasPrefix(kind, "kernel_"):
		case kind == "user_mutex" && igtest.Depth(s, "sem_wait") < 0:
		default:
			require.Fail(t, "a thread without work", "%s: %v", kind, s.Stack)
		}
	}
}

// require checks the waits of one function. truth and found are the sums of all.
func (l *lock) require(t *testing.T, r *run, delays, contentions []receiver.Sample, truth, found int64) {
	t.Helper()
	own := r.truth[l.function]
	waited := igtest.Total(delays)
	t.Logf("%s: %.3f s in %d waits; its own %.3f s in %d calls: %+.2f %%; share %.2f %%, its own %.2f %%", l.function,
		float64(waited)/1e9, igtest.Total(contentions), float64(own.ns)/1e9, own.calls, 100*(float64(waited)/float64(own.ns)-1),
		100*float64(waited)/float64(found), 100*float64(own.ns)/float64(truth))
	require.InEpsilon(t, own.ns, waited, l.within, l.function)
	require.InEpsilon(t, float64(own.ns)/float64(truth), float64(waited)/float64(found), l.within, l.function)
	require.Positive(t, igtest.Total(contentions))
	toEntry := int64(0)
	for _, s := range delays {
		at := igtest.Depth(s, l.function)
		require.Positive(t, at, "%v", s.Stack)
		if whole(s) {
			toEntry += s.Total()
		}
		// A spinlock of the kernel is waited for in a call of anything.
		if kind := s.Attributes["lock.kind"]; kind == l.kind {
			// A libc that is not stripped has further names for it.
			require.Equal(t, l.calls, strings.TrimPrefix(strings.TrimLeft(s.Stack[at-1].Name, "_"), "GI_"), "%v", s.Stack)
		} else {
			require.Equal(t, "kernel", s.Stack[0].Type, "%s: %v", kind, s.Stack)
		}
	}
	// The unwinder learns of a file in the moments after it has met it first.
	require.GreaterOrEqual(t, 100*toEntry, 99*waited)
	require.GreaterOrEqual(t, 100*byKind(delays)[l.kind], 95*waited, "%v", byKind(delays))
}

// TestAllFutex shows the pool as a kind of its own.
func TestAllFutex(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	r := profile(t, "--all-futex", "--sample-time="+strconv.Itoa(sampleTime))
	delays, _ := profileOf(t, r.samples)
	pool := append(igtest.Through(delays, "wait_for_work"), igtest.Through(delays, "wait_for_job")...)
	kinds := byKind(pool)
	t.Logf("%.1f s of the pool, by kind: %v", float64(igtest.Total(pool))/1e9, kinds)
	// What has not ended when the run ends is not in the sums.
	require.Greater(t, kinds["user_futex"], int64(80*seconds*1e9))
	require.Greater(t, 100*kinds["user_futex"], 99*igtest.Total(pool))
	// A stack that was above what a CPU may take is cut below the function that waits. Its value is there.
	named := byKind(igtest.Through(delays, "take_mutex"))["user_mutex"]
	cut := byKind(slices.DeleteFunc(slices.Clone(delays), func(s receiver.Sample) bool { return whole(s) || igtest.Depth(s, "take_mutex") >= 0 }))["user_mutex"]
	t.Logf("take_mutex: %d ns, %d ns of mutexes in stacks that were cut; its own %d ns", named, cut, r.truth["take_mutex"].ns)
	require.Less(t, 100*named, 105*r.truth["take_mutex"].ns)
	require.Greater(t, 100*(named+cut), 95*r.truth["take_mutex"].ns)
	require.Less(t, 2*cut, named)
	require.Zero(t, r.captured.Other)
}

// TestLockAddress tells two mutexes apart that one function waits for.
func TestLockAddress(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	r := profile(t, "--lock-address", "--sample-time="+strconv.Itoa(sampleTime))
	delays, _ := profileOf(t, r.samples)
	of := map[string]map[string]bool{}
	for _, l := range locks {
		addresses := map[string]bool{}
		for _, s := range igtest.Through(delays, l.function) {
			if s.Attributes["lock.kind"] == l.kind {
				addresses[s.Attributes["lock.address"]] = true
				file := ""
				if l.function == "take_shared" {
					file = "/memfd:shop lock (deleted)+0x100"
				}
				require.Equal(t, file, s.Attributes["lock.file"], l.function)
			}
		}
		require.Len(t, addresses, 1, "%s: %v", l.function, addresses)
		for address := range addresses {
			require.Regexp(t, `^0x[0-9a-f]{16}$`, address)
			if of[address] == nil {
				of[address] = map[string]bool{}
			}
			of[address][l.function] = true
		}
	}
	t.Logf("functions by the address of their lock: %v", of)
	require.Len(t, of, 5, "both sides of the table have one lock: %v", of)
}

// TestWithoutKernelLocks has only the locks of the program.
func TestWithoutKernelLocks(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	r := profile(t, "--kernel-locks=false", "--sample-time="+strconv.Itoa(sampleTime))
	delays, _ := profileOf(t, r.samples)
	require.Empty(t, igtest.Through(delays, "count_pipe"))
	for kind := range byKind(delays) {
		require.True(t, strings.HasPrefix(kind, "user_"), kind)
	}
	require.InEpsilon(t, r.truth["take_mutex"].ns, igtest.Total(igtest.Through(delays, "take_mutex")), 0.05)
}

func parseTruth(out string) (map[string]waits, error) {
	truth := map[string]waits{}
	for line := range strings.Lines(out) {
		var name string
		var w waits
		if _, err := fmt.Sscan(line, &name, &w.ns, &w.calls); err != nil {
			return nil, fmt.Errorf("reading %q: %w", line, err)
		}
		truth[name] = w
	}
	return truth, nil
}
