package igtest

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Patience limits how long tests wait. A busy machine takes longer than an idle one.
const Patience = 4 * time.Minute

// Receiver starts a receiver in this process, and closes it at the end of the test.
func Receiver(t *testing.T) *receiver.Receiver {
	t.Helper()
	r, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// ExportTo returns the flags that make ig send to a receiver.
func ExportTo(r *receiver.Receiver) []string {
	return []string{"--otel-profiles-exporter=otlp", "--otel-profiles-endpoint=http://" + r.Addr(), "--otel-profiles-interval=2s"}
}

// Run is an ig process that runs a gadget. It ends with the test at the latest.
type Run struct {
	// PID is ig's process ID, and Log is ig's log.
	PID int
	Log *Buffer
	// Ended is closed when ig has exited.
	Ended chan struct{}

	t       *testing.T
	process *os.Process
	err     error // ig's exit error
}

// Start starts the built ig with a gadget's image, without output of rows.
func Start(t *testing.T, image string, flags ...string) *Run {
	t.Helper()
	args := append(append([]string{"run", image, "--output=none"}, igrun.GadgetFlags()...), flags...)
	cmd := igrun.Command(t.Context(), Built(t, Bin, "ig"), args...)
	r := &Run{Log: &Buffer{}, Ended: make(chan struct{}), t: t}
	cmd.Stdout, cmd.Stderr = r.Log, r.Log
	require.NoError(t, cmd.Start())
	r.PID, r.process = cmd.Process.Pid, cmd.Process
	go func() {
		r.err = cmd.Wait()
		close(r.Ended)
	}()
	t.Cleanup(func() {
		<-r.Ended
		if t.Failed() {
			t.Logf("ig said:\n%s", r.Log)
		}
	})
	return r
}

// Wait waits for a condition while ig runs.
func (r *Run) Wait(what string, happened func() bool) {
	r.t.Helper()
	for end := time.Now().Add(Patience); !happened(); {
		require.True(r.t, time.Now().Before(end), "timed out waiting for %s after %v", what, Patience)
		select {
		case <-r.Ended:
			require.FailNow(r.t, "ig has ended before "+what, "%v", r.err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Says waits for a text in ig's log.
func (r *Run) Says(text string) {
	r.t.Helper()
	r.Wait(text, func() bool { return strings.Contains(r.Log.String(), text) })
}

// Stop ends ig as a user does.
func (r *Run) Stop() {
	r.t.Helper()
	_ = r.process.Signal(os.Interrupt) // if it has already exited, require below reports that
	<-r.Ended
	require.NoError(r.t, r.err)
}

// Captured is the closing line of the operator captures.
type Captured struct{ Events, Sampled, Added, Inner, Other, Bad, Lost int64 }

var capturedLine = regexp.MustCompile(`captures: (\d+) events, (\d+) sampled: (\d+) added to rows, (\d+) inner calls, (\d+) of other kinds, (\d+) not decoded, (\d+) lost`)

// ReadCaptured finds the closing line in a log. It requires that all events were decoded and are accounted for.
func ReadCaptured(t *testing.T, log string) (c Captured) {
	t.Helper()
	found := capturedLine.FindStringSubmatch(log)
	require.NotNil(t, found, "the operator's summary is missing: %s", log)
	for i, n := range []*int64{&c.Events, &c.Sampled, &c.Added, &c.Inner, &c.Other, &c.Bad, &c.Lost} {
		var err error
		*n, err = strconv.ParseInt(found[i+1], 10, 64)
		require.NoError(t, err)
	}
	t.Logf("captured: %+v", c)
	require.Equal(t, c.Sampled, c.Added+c.Inner+c.Other+c.Bad+c.Lost)
	require.Zero(t, c.Bad)
	return c
}
