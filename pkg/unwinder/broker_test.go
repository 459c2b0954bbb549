package unwinder

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// The test's own executable replaces the unwinder. The last label on its command line sets its role.
const (
	playGood     = 1 + iota
	playRefuse   // says that it cannot work here
	playCrash    // crashes after a few samples, and loses seven
	playGarbage  // writes invalid output
	playNothing  // exits at once
	playDeaf     // does not exit when it should
	playSilent   // reports that it works, and nothing more
	playStuck    // works on one sample forever
	playFlood    // writes as fast as it can
	playLanguage // as playGood
	playMute     // writes nothing, and does not exit when it should
	playBlocked  // waits for the files of a process, unless it must avoid the process
	playHeld     // the same, and writes nothing in the meantime
	playLocked   // works on a sample of process 1, and reading the files of a process waits for that
	playSpin     // uses CPU time on the files of a process, unless it must avoid the process
	playCulprit  // exits while it reads the files of a process, unless it must avoid the process
	playReading  // like playGood, and always reads the files of a process
	playHungry   // uses more and more memory
	playNoLoad   // logs its state, and exits before it has reported that it works
	playEntries  // has an entry for raw tracepoints, and sends a stack for each gadget run
	playLater    // the same, and accepts tracepoints at the second request
	playForeign  // sends a pipe as its entry for kprobes
	playUnasked  // reports again and again that it has no entries
	playDenied   // like playRefuse, for tests in which another role runs
	playStays    // like playEntries and playBlocked; another process holds its descriptors, so its exit cannot be detected
)

func TestMain(m *testing.M) {
	playReader()
	for i, a := range os.Args {
		if a == "-labels" && i+1 < len(os.Args) {
			labels := split(os.Args[i+1])
			play(int(labels[len(labels)-1][0] - 'A'))
			os.Exit(0)
		}
	}
	goleak.VerifyTestMain(m)
}

func play(role int) {
	pipe, counters := os.NewFile(3, "pipe"), os.NewFile(4, "counters")
	set := func(i int, n uint64) {
		_, _ = counters.WriteAt(binary.NativeEndian.AppendUint64(nil, n), int64(8*i))
	}
	w := wire.NewWriter(pipe)
	if role == playNothing {
		fmt.Fprintln(os.Stderr, "exec format error")
		os.Exit(3)
	}
	if role == playRefuse || role == playDenied {
		w.Hello("the unwinder needs CAP_BPF")
		_ = w.Flush()
		return
	}
	if role == playMute {
		time.Sleep(time.Hour)
	}
	if role == playNoLoad {
		w.Stats(&wire.Stats{})
		_ = w.Flush()
		fmt.Fprintf(os.Stderr, "level=ERROR msg=%q\n", "loading the eBPF programs: invalid argument")
		os.Exit(1)
	}
	w.Hello("")
	w.Ready(wire.Ready{})
	_ = w.Flush()
	sendEntries(role)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	stack := w.Stack([]uint32{w.Frame(&wire.Frame{Function: "main"}, 0)}, 0)
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	pid := os.Getpid()
	if role == playStays && leaveAlone() == "" {
		stays := exec.Command("/bin/sleep", "1000")
		stays.Stderr, stays.ExtraFiles = os.Stderr, []*os.File{pipe, counters, os.NewFile(5, "entries")}
		if err := stays.Start(); err != nil {
			panic(err)
		}
		pid = stays.Process.Pid
	}
	proc := w.Proc(wire.Proc{PID: uint32(pid), Start: uint64(slack), Exe: leaveAlone()})
	taken, blocked := uint64(0), false
	var eaten [][]byte
	send := func(n uint64) {
		if role == playEntries || role == playLater || role == playStays {
			w.Unwound(1<<54|taken, stack, proc, &wire.Said{})
			w.Unwound(2<<54|taken, stack, proc, &wire.Said{})
			taken += 2
		}
		taken += n
		set(wire.CounterTaken, taken)
		for range n {
			w.Unwound(uint64(role), stack, proc, &wire.Said{})
		}
		w.Stats(&wire.Stats{Taken: taken, Aborts: map[uint32]uint64{2: taken}})
		_ = w.Flush()
	}
	for {
		switch role {
		case playSilent:
			<-ended
			return
		case playStuck:
			set(wire.CounterPID, 4711)
			w.Stats(&wire.Stats{Taken: taken})
			_ = w.Flush()
		case playReading:
			set(wire.CounterReading, uint64(os.Getppid()))
			send(1)
		case playCulprit:
			send(1)
			if leaveAlone() == "" {
				set(wire.CounterReading, uint64(os.Getppid()))
				panic("runtime: out of memory")
			}
		case playBlocked, playHeld, playLocked, playSpin, playStays:
			if role == playStays {
				send(1)
			}
			if leaveAlone() != "" {
				send(1)
				break
			}
			if !blocked {
				blocked = true
				if role == playLocked {
					set(wire.CounterPID, 1)
				}
				go func() {
					if role == playLocked {
						time.Sleep(400 * time.Millisecond) // some checks
					}
					runtime.LockOSThread()
					set(wire.CounterReaderThread, uint64(unix.Gettid()))
					set(wire.CounterReads, 1)
					set(wire.CounterReading, uint64(os.Getppid()))
					if role != playSpin {
						select {}
					}
					for spins := 0; ; {
						spins++
					}
				}()
			}
			if role == playHeld {
				<-ended
				return
			}
			w.Stats(&wire.Stats{Taken: taken})
			_ = w.Flush()
		case playCrash:
			send(3)
			set(wire.CounterTaken, taken+7)
			set(wire.CounterPID, 4711)
			panic("unexpected fault address")
		case playHungry:
			eaten = append(eaten, bytes.Repeat([]byte{1}, 8<<20))
			runtime.KeepAlive(eaten)
			send(1)
		case playGarbage:
			_, _ = pipe.Write([]byte("\x00\x00\x00"))
		default:
			send(1)
		}
		wait := 10 * time.Millisecond
		if role == playFlood {
			wait = 0
		}
		select {
		case <-ended:
			if role == playDeaf {
				select {}
			}
			send(5)
			return
		case <-time.After(wait):
		}
	}
}

// leaveAlone returns the processes that the unwinder must avoid.
func leaveAlone() string { return os.Args[slices.Index(os.Args, "-leave-alone")+1] }

// logged keeps the messages for an operator.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Warnf(format string, args ...any) { l.add("warning: "+format, args...) }

func (l *logged) Debugf(format string, args ...any) { l.add(format, args...) }

func (l *logged) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func newTestBroker() (*Broker, *logged) {
	l := &logged{}
	b := New(l)
	b.path = os.Executable
	b.firstBackoff, b.endTime = 20*time.Millisecond, 10*time.Second
	return b, l
}

func ask(role int) Settings { return Settings{Labels: string(rune('A' + role)), Languages: all} }

func sum(t *testing.T, s *Subscription) (n uint64) {
	t.Helper()
	for {
		select {
		case b := <-s.C:
			n += uint64(len(b))
		default:
			return n
		}
	}
}

func subscribe(t *testing.T, b *Broker, s Settings) *Subscription {
	t.Helper()
	sub, err := b.Subscribe(t.Context(), s)
	require.NoError(t, err)
	return sub
}

// receive reads until at least n samples have arrived.
func receive(t *testing.T, s *Subscription, n uint64) (got uint64) {
	t.Helper()
	limit := time.After(time.Minute)
	for got < n {
		select {
		case b := <-s.C:
			got += uint64(len(b))
		case <-limit:
			t.Fatalf("%d of %d samples", got, n)
		}
	}
	return got
}

// TestNothingIsLost checks that all samples arrive that the unwinder took before it exited, and that the counters agree.
func TestNothingIsLost(t *testing.T) {
	b, _ := newTestBroker()
	s := subscribe(t, b, ask(playGood))
	got := receive(t, s, 10)
	s.Close()
	got += sum(t, s)
	total := b.Totals()
	assert.Equal(t, total.Taken, got+s.Overrun())
	assert.Equal(t, total.Taken, total.Aborts[2])
	assert.Zero(t, total.Restarts)
	assert.Zero(t, total.Crashed)
}

// TestTimerSlack checks that only the unwinder's timers can be late, and not the timers of the process that starts it.
func TestTimerSlack(t *testing.T) {
	b, _ := newTestBroker()
	s := subscribe(t, b, ask(playGood))
	defer s.Close()
	batch := <-s.C
	assert.Equal(t, uint64(timerSlack), batch[0].Proc.Start)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	require.NoError(t, err)
	assert.Less(t, own, int(timerSlack))
}

// TestShared checks that a second subscriber shares the unwinder, and that a later subscriber starts it again.
func TestShared(t *testing.T) {
	b, _ := newTestBroker()
	one := subscribe(t, b, ask(playGood))
	two := subscribe(t, b, ask(playGood))
	receive(t, one, 5)
	receive(t, two, 5)
	one.Close()
	receive(t, two, 5)
	two.Close()
	assert.Equal(t, uint64(1), b.Totals().Starts)
	three := subscribe(t, b, ask(playGood))
	receive(t, three, 5)
	three.Close()
	assert.Equal(t, uint64(2), b.Totals().Starts)
	assert.Zero(t, b.Totals().Restarts)
}

// TestMoreIsAskedFor checks that a subscriber gets additional settings, and that this does not count as a restart.
func TestMoreIsAskedFor(t *testing.T) {
	b, _ := newTestBroker()
	one := subscribe(t, b, ask(playGood))
	defer one.Close()
	receive(t, one, 1)
	two := subscribe(t, b, ask(playLanguage))
	defer two.Close()
	limit := time.After(time.Minute)
	for role := uint64(0); role != playLanguage; {
		select {
		case batch := <-one.C:
			role = batch[0].ID
		case <-two.C:
		case <-limit:
			t.Fatal("the program was not started with more")
		}
	}
	assert.Zero(t, b.Totals().Restarts)
}

func TestRefused(t *testing.T) {
	b, _ := newTestBroker()
	for range 2 {
		_, err := b.Subscribe(t.Context(), ask(playRefuse))
		require.ErrorContains(t, err, "the unwinder needs CAP_BPF")
	}
}

// TestRefusedLater checks that the log tells running subscribers when the unwinder can no longer work.
func TestRefusedLater(t *testing.T) {
	b, l := newTestBroker()
	one := subscribe(t, b, ask(playGood))
	defer one.Close()
	receive(t, one, 1)
	two := subscribe(t, b, ask(playRefuse))
	defer two.Close()
	require.Eventually(t, func() bool { return strings.Contains(l.String(), "no longer get whole stacks") }, time.Minute, 10*time.Millisecond)
	assert.Contains(t, l.String(), "2 running gadgets no longer get whole stacks: whole stacks are not available on this machine: the unwinder needs CAP_BPF")
}

// TestSubscribeGivesUp checks that Subscribe stops waiting when its context ends, whether it waits for a first run or for a run
// to end.
func TestSubscribeGivesUp(t *testing.T) {
	t.Parallel()
	b, _ := newTestBroker()
	b.endTime = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := b.Subscribe(ctx, ask(playMute))
		failed <- err
	}()
	var running chan struct{}
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		running = b.running
		return running != nil
	}, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	// The unwinder is ending or has ended.
	_, err := b.Subscribe(ctx, ask(playMute))
	require.ErrorIs(t, err, context.Canceled)
	<-running
	s := subscribe(t, b, ask(playGood))
	receive(t, s, 1)
	s.Close()
}

// TestQueuedBytes checks that queued batches are bounded in bytes, and that a single large batch is accepted.
func TestQueuedBytes(t *testing.T) {
	s := &Subscription{c: make(chan []wire.Unwound, queued)}
	require.True(t, s.deliver(nil, 2*queuedBytes), "alone")
	require.False(t, s.deliver(nil, 1))
	<-s.c
	for range 4 {
		require.True(t, s.deliver(nil, queuedBytes/4))
	}
	require.False(t, s.deliver(nil, 1))
	<-s.c
	require.True(t, s.deliver(nil, queuedBytes/4))
	require.False(t, s.deliver(nil, queuedBytes/4))
	for range 4 {
		<-s.c
	}
	for range queued {
		require.True(t, s.deliver(nil, 1))
	}
	require.False(t, s.deliver(nil, 1))
	require.Len(t, s.sizes, queued)
}

// TestOverrun checks that a subscriber that does not read loses samples and counts them, and does not delay others.
func TestOverrun(t *testing.T) {
	b, _ := newTestBroker()
	b.flushBurst = 1 << 30
	slow := subscribe(t, b, ask(playFlood))
	quick := subscribe(t, b, ask(playFlood))
	receive(t, quick, 1000)
	quick.Close()
	slow.Close()
	got := sum(t, slow)
	assert.LessOrEqual(t, got, uint64(queued+5))
	assert.Positive(t, slow.Overrun())
	assert.Equal(t, b.Totals().Taken, got+slow.Overrun())
}

func TestSettings(t *testing.T) {
	assert.Equal(t, Settings{Languages: "go,java,perl", Scale: 2, Spans: true, Labels: "tenant"},
		Settings{Languages: "perl,java", Scale: 2}.with(Settings{Languages: "go,java", Spans: true, Labels: "tenant"}))
	assert.Equal(t, all, Settings{Languages: "go"}.with(ask(1)).Languages)
	assert.Equal(t, "kprobe,raw_tp", Settings{Chains: "raw_tp"}.with(Settings{Chains: "kprobe,raw_tp"}).Chains)
	assert.NoError(t, Settings{Chains: "perf,kprobe", Languages: all}.Check())
	assert.ErrorContains(t, Settings{Chains: "fentry", Languages: all}.Check(), `"fentry"`)
	assert.ErrorContains(t, Settings{Languages: "cobol"}.Check(), `"cobol"`)
	assert.ErrorContains(t, Settings{Languages: all, Labels: "a,b,c,d,e,f,g,h,i,j,k"}.Check(), "11 labels")
	assert.ErrorContains(t, Settings{Languages: all, Scale: 9}.Check(), "memory scale: got 9")
}

// TestSaid checks that the operator sees the unwinder's own warnings, up to a limit, and no lines of the profiler.
func TestSaid(t *testing.T) {
	b, l := newTestBroker()
	say := b.said()
	say("level=WARN msg=loud from=profiler pid=7")
	say("level=DEBUG msg=quiet")
	assert.NotContains(t, l.String(), "warning")
	for range 2 * maxWarnings {
		say("level=WARN msg=\"a process's files could not be parsed\"")
	}
	assert.Equal(t, maxWarnings, strings.Count(l.String(), "warning: unwinder: level=WARN"))
}

// TestLog checks that a crash is logged in one line, and that texts from other programs are cleaned.
func TestLog(t *testing.T) {
	var lines []string
	l := &logWriter{line: func(s string) { lines = append(lines, s) }}
	fmt.Fprint(l, "level=WARN msg=\"a\x1b[2J\"\nunexpected fault address 0x7f0000000000\nfatal error: fault\n[signal SIGBUS: bus error]\n\ngoroutine 1 [running]:\nmain.main()\n\tmain.go:1\nlevel=WARN msg=b\n")
	fmt.Fprint(l, strings.Repeat("x", 10*maxLine))
	assert.Equal(t, []string{"level=WARN msg=\"a\ufffd[2J\"", "level=WARN msg=b"}, lines)
	assert.Equal(t, " (unexpected fault address 0x7f0000000000; fatal error: fault; [signal SIGBUS: bus error])", l.last())
	assert.LessOrEqual(t, len(l.part), maxLine)
}
