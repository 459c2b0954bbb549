package igtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// EverySample writes a configuration with the exporter "truth", and returns its path. The exporter sends each sample, including its
// process, to an address.
func EverySample(t *testing.T, addr string) (config string) {
	t.Helper()
	config = filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
operator:
  otel-profiles:
    exporters:
      truth:
        exporter: otlp-grpc
        endpoint: %q
        insecure: true
        attributes: ["process.pid=sample"]
        max_values_per_attribute: 0
        shutdown_timeout: 2m # the receiver can get little time beside dozens of programs that burn it
`, addr), 0o600))
	return config
}

// Run is an ig process. It ends with the test at the latest.
type Run struct {
	// PID is ig's process ID, and Log is ig's log.
	PID int
	Log *Buffer
	// Ended is closed when ig has exited. Err is then the exit error.
	Ended chan struct{}
	Err   error

	t       *testing.T
	process *os.Process
}

// Command returns a command that runs the built ig with a gadget's image.
func Command(t *testing.T, image string, flags ...string) *exec.Cmd {
	t.Helper()
	return igrun.Command(t.Context(), Built(t, Bin, "ig"), slices.Concat([]string{"run", image}, igrun.GadgetFlags(), flags)...)
}

// Start starts the built ig with a gadget's image, without output of rows.
func Start(t *testing.T, image string, flags ...string) *Run {
	t.Helper()
	return StartCommand(t, Command(t, image, append([]string{"--output=none"}, flags...)...))
}

// StartCommand starts a command that igrun has made. Its standard output goes into the log, unless it goes elsewhere already.
func StartCommand(t *testing.T, cmd *exec.Cmd) *Run {
	t.Helper()
	r := &Run{Log: &Buffer{}, Ended: make(chan struct{}), t: t}
	cmd.Stderr = r.Log
	if cmd.Stdout == nil {
		cmd.Stdout = r.Log
	}
	require.NoError(t, cmd.Start())
	r.PID, r.process = cmd.Process.Pid, cmd.Process
	go func() {
		r.Err = cmd.Wait()
		close(r.Ended)
	}()
	t.Cleanup(func() {
		<-r.Ended
		if t.Failed() {
			t.Logf("ig said:\n%s", WithoutNoise(r.Log.Bytes()))
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
			require.FailNow(r.t, "ig has ended before "+what, "%v", r.Err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Says waits for a text in ig's log.
func (r *Run) Says(text string) {
	r.t.Helper()
	r.Wait(text, func() bool { return strings.Contains(r.Log.String(), text) })
}

// Interrupt makes ig end, as a user does.
func (r *Run) Interrupt() { _ = r.process.Signal(os.Interrupt) } // if it has already exited, Err reports that

// Stop interrupts ig, and requires that it ends without an error.
func (r *Run) Stop() {
	r.t.Helper()
	r.Interrupt()
	<-r.Ended
	require.NoError(r.t, r.Err)
}

// Captured is the closing line of the operator captures.
type Captured struct{ Events, Sampled, Added, Inner, Other, Bad, Lost int64 }

var capturedLine = regexp.MustCompile(`captures: (\d+) events, (\d+) sampled: (\d+) added to rows, (\d+) inner calls, (\d+) of other kinds, (\d+) not decoded, (\d+) lost`)

// ReadCaptured finds the closing line in a log. It requires that all events were decoded and are accounted for.
func ReadCaptured(t *testing.T, log string) (c Captured) {
	t.Helper()
	found := capturedLine.FindStringSubmatch(log)
	require.NotNil(t, found, "the operator's summary is missing: %s", log)
	readNumbers(t, found[1:], &c.Events, &c.Sampled, &c.Added, &c.Inner, &c.Other, &c.Bad, &c.Lost)
	t.Logf("captured: %+v", c)
	require.Equal(t, c.Sampled, c.Added+c.Inner+c.Other+c.Bad+c.Lost)
	require.Zero(t, c.Bad)
	return c
}
