package unwinder

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

func TestDoesNotStart(t *testing.T) {
	b, l := newTestBroker()
	_, err := b.Subscribe(t.Context(), ask(playNothing))
	require.ErrorContains(t, err, "failed to start")
	assert.Contains(t, l.String(), "exec format error")
}

// TestDoesNotLoad checks that a waiting subscriber gets the error if the kernel refuses the unwinder's programs.
func TestDoesNotLoad(t *testing.T) {
	b, l := newTestBroker()
	_, err := b.Subscribe(t.Context(), ask(playNoLoad))
	require.ErrorContains(t, err, "(loading the eBPF programs: invalid argument)")
	require.EqualValues(t, maxEarly-1, b.Totals().Restarts)
	require.Contains(t, l.String(), "in 40ms (restart 2)", "each pause is twice the one before")
}

// TestHung checks that too many blocked unwinders stop the sampling, and that new subscribers get the reason. Sampling
// continues after one has exited.
func TestHung(t *testing.T) {
	b, l := newTestBroker()
	b.hungInterval = 10 * time.Millisecond
	s := subscribe(t, b, ask(playCrash))
	defer s.Close()
	receive(t, s, 3)
	hung := hang(t, b)
	require.Eventually(t, func() bool {
		return strings.Contains(l.String(), "warning: gadgets no longer get whole stacks: 3 unwinders are blocked")
	}, time.Minute, 10*time.Millisecond)
	sum(t, s)
	_, err := b.Subscribe(t.Context(), ask(playCrash))
	require.ErrorContains(t, err, "3 unwinders are blocked")
	starts := b.Totals().Starts
	time.Sleep(4 * b.hungInterval)
	require.Equal(t, starts, b.Totals().Starts)
	hung[1].kill()
	receive(t, s, 3)
	require.Equal(t, 1, strings.Count(l.String(), "gadgets no longer get whole stacks: "), l.String())
}

// hang makes so many unwinders hang that no other is started.
func hang(t *testing.T, b *Broker) (hung []*process) {
	for range maxHung {
		p := &process{child: &child{cmd: exec.Command("/bin/sleep", "1000"), ended: make(chan struct{})}}
		require.NoError(t, p.cmd.Start())
		go func() {
			_ = p.cmd.Wait()
			close(p.ended)
		}()
		t.Cleanup(func() {
			p.kill()
			<-p.ended
		})
		hung = append(hung, p)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hung = slices.Clone(hung)
	return hung
}

func TestNotInstalled(t *testing.T) {
	b, _ := newTestBroker()
	b.path = find
	_, err := b.Subscribe(t.Context(), ask(playGood))
	require.ErrorIs(t, err, ErrNoProgram)
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role int
		says []string
	}{
		"crash":   {playCrash, []string{"unexpected fault address", "sample of process 4711"}},
		"garbage": {playGarbage, []string{"the unwinder's stream is damaged"}},
		"silent":  {playSilent, []string{"wrote nothing for"}},
		"flood":   {playFlood, []string{"more than 20 batches"}},
		"stuck":   {playStuck, []string{"one sample of process 4711"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, l := newTestBroker()
			b.silence, b.flushBurst = 300*time.Millisecond, 300
			s := subscribe(t, b, ask(c.role))
			// On a busy machine, a run can also end because its start takes longer than silence.
			require.Eventually(t, func() bool {
				said := l.String()
				return strings.Count(said, c.says[0]) >= 2 && strings.Contains(said, c.says[len(c.says)-1]) && b.Totals().Restarts >= 2
			}, time.Minute, 10*time.Millisecond)
			s.Close()
			total := b.Totals()
			got := sum(t, s) + s.Overrun()
			assert.Equal(t, total.Taken, got+total.Crashed)
			if c.role == playCrash {
				assert.GreaterOrEqual(t, total.Crashed, 2*uint64(7))
				assert.Zero(t, total.Crashed%7)
				assert.Positive(t, total.Away)
			}
		})
	}
}

func TestDeaf(t *testing.T) {
	t.Parallel()
	b, _ := newTestBroker()
	b.endTime = 200 * time.Millisecond
	s := subscribe(t, b, ask(playDeaf))
	receive(t, s, 3)
	s.Close()
	assert.Zero(t, b.Totals().Restarts)
}

// TestBlocked checks that a process causes one restart if reading its files hangs or takes endless CPU time. The process is
// then avoided. On a machine with one CPU, the whole unwinder waits for the files.
func TestBlocked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role int
		says string
	}{
		"one goroutine waits": {playBlocked, "reading the files of process %d made no progress"},
		"all wait":            {playHeld, "reading the files of process %d made no progress"},
		"one burns CPU time":  {playSpin, "reading the files of process %d took"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, l := newTestBroker()
			b.silence, b.unanswered = time.Second, 500*time.Millisecond
			s := subscribe(t, b, ask(c.role))
			receive(t, s, 3)
			s.Close()
			// On a busy machine, a run can also end because its start takes longer than silence.
			said := l.String()
			require.EqualValues(t, 1, int(b.Totals().Restarts)-strings.Count(said, "it wrote nothing for"), said)
			require.Equal(t, 1, strings.Count(said, fmt.Sprintf(c.says, os.Getpid())), said)
		})
	}
}

// TestLocked checks that the process of a sample is avoided if reading another process's files only waits for this sample.
func TestLocked(t *testing.T) {
	t.Parallel()
	b, l := newTestBroker()
	b.silence, b.unanswered = 10*time.Second, 500*time.Millisecond
	s := subscribe(t, b, ask(playLocked))
	avoided := (<-s.C)[0].Proc.Exe
	s.Close()
	require.Regexp(t, "^1:[0-9]+$", avoided)
	require.Contains(t, l.String(), "processing a sample of process 1 made no progress")
	require.NotContains(t, l.String(), fmt.Sprintf("files of process %d", os.Getpid()))
}

// TestCulprit checks that a process is avoided after the unwinder exited twice on it.
func TestCulprit(t *testing.T) {
	b, l := newTestBroker()
	s := subscribe(t, b, ask(playCulprit))
	receive(t, s, 5)
	s.Close()
	require.EqualValues(t, 2, b.Totals().Restarts, l.String())
	require.Contains(t, l.String(), fmt.Sprintf("it was reading files of process %d, as before an earlier restart, so samples of this process are skipped from now on", os.Getpid()))
}

// TestInnocent checks that a process loses nothing if a person kills the unwinder once while it reads that process's files.
func TestInnocent(t *testing.T) {
	b, l := newTestBroker()
	s := subscribe(t, b, ask(playReading))
	defer s.Close()
	first := (<-s.C)[0].Proc.PID
	require.NoError(t, unix.Kill(int(first), unix.SIGKILL))
	for {
		if proc := (<-s.C)[0].Proc; proc.PID != first {
			require.Empty(t, proc.Exe)
			break
		}
	}
	require.Contains(t, l.String(), fmt.Sprintf("SIGKILL; it was reading files of process %d", os.Getpid()))
}

// The counters of a restarted unwinder begin at 0, so a total is the sum of all runs. The memory is of the current run.
func TestSumOfRuns(t *testing.T) {
	run := func(n uint64) wire.Stats {
		s := wire.Stats{Taken: n, Full: 4 * n, Failed: 5 * n, Idle: 6 * n, KernelLost: 7 * n, NoProcess: 8 * n, KernelMemory: 9 * n, Aborts: map[uint32]uint64{3: 10 * n}}
		s.Languages[wire.FrameJVM] = wire.Language{Frames: 11 * n, Expected: 12 * n, Missing: 13 * n}
		return s
	}
	want := run(101)
	want.KernelMemory = 900
	require.Equal(t, want, add(run(1), run(100)))
	require.Equal(t, run(100), add(wire.Stats{}, run(100)))
}
