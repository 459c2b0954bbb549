//go:build e2e

package locks

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// books are what the operator captures says at the end.
type books struct{ events, drawn, added, inner, other, bad, lost int64 }

var booksLine = regexp.MustCompile(`captures: (\d+) events, (\d+) sampled: (\d+) added to rows, (\d+) within others, (\d+) of other kinds, (\d+) not decoded, (\d+) lost`)

// run is one run of the gadget on the program locks.
type run struct {
	truth   map[string]waits
	samples []receiver.Sample
	books   books
}

func (r *run) requireBooks(t *testing.T) {
	t.Helper()
	b := r.books
	t.Logf("books: %+v", b)
	require.Equal(t, b.drawn, b.added+b.inner+b.other+b.bad+b.lost)
	require.Greater(t, b.events, b.drawn, "short waits are drawn")
	require.Zero(t, b.bad)
	require.Less(t, 100*b.lost, b.drawn)
}

// compile compiles the program as distributions do, without frame pointers.
func compile(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "locks")
	igtest.Output(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-pthread", "-o", program, filepath.Join("testdata", "locks.c"))
	return program
}

// profile runs the gadget on the program. The threads begin to contend once a wait of the warmup has arrived with its
// functions: the gadget is at work by then, and sees all of it.
func profile(t *testing.T, flags ...string) *run {
	t.Helper()
	program := exec.CommandContext(t.Context(), compile(t), strconv.Itoa(seconds))
	// The scheduler shares CPUs between sessions first.
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	program.Stderr = os.Stderr
	stdin, err := program.StdinPipe()
	require.NoError(t, err)
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	waited := false
	defer func() {
		if !waited {
			_ = program.Process.Kill()
			_ = program.Wait()
		}
	}()

	rcv, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, rcv.Close()) }()
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	args := append([]string{"run", igtest.Import(t, "profile_lock")}, igrun.GadgetFlags()...)
	args = append(args, "--pid="+strconv.Itoa(program.Process.Pid), "--otel-profiles-exporter=otlp", "--otel-profiles-endpoint=http://"+rcv.Addr(),
		"--otel-profiles-interval=2s", "--output=none")
	ig := igrun.Command(ctx, igtest.Built(t, igtest.Bin, "ig"), append(args, flags...)...)
	var log bytes.Buffer
	ig.Stdout, ig.Stderr = &log, &log
	require.NoError(t, ig.Start())
	ended := make(chan error, 1)
	go func() { ended <- ig.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ig said:\n%s", log.Bytes())
		}
	})

	for len(through(rcv.Samples(), "take_warmup")) == 0 {
		select {
		case err := <-ended:
			require.NoError(t, err)
			require.FailNow(t, "ig has ended")
		case <-time.After(100 * time.Millisecond):
		}
	}
	_, err = stdin.Write([]byte("\n"))
	require.NoError(t, err)
	var own bytes.Buffer
	_, err = bufio.NewReader(out).WriteTo(&own)
	require.NoError(t, err)
	require.NoError(t, program.Wait())
	waited = true
	require.NoError(t, ig.Process.Signal(os.Interrupt))
	require.NoError(t, <-ended)

	r := &run{samples: rcv.Samples()}
	r.truth, err = parseTruth(own.String())
	require.NoError(t, err)
	found := booksLine.FindSubmatch(log.Bytes())
	require.NotNil(t, found, "the operator's summary is missing: %s", log.Bytes())
	for i, n := range []*int64{&r.books.events, &r.books.drawn, &r.books.added, &r.books.inner, &r.books.other, &r.books.bad, &r.books.lost} {
		*n, err = strconv.ParseInt(string(found[i+1]), 10, 64)
		require.NoError(t, err)
	}
	findings := rcv.Findings()
	for _, req := range rcv.Requests() {
		findings = append(findings, otlpcheck.CheckKernelAddresses(req)...)
	}
	require.Empty(t, findings)
	return r
}

// whole tells whether nothing is missing of a stack.
func whole(s receiver.Sample) bool {
	return !slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool {
		return f.Name == "[truncated]" || f.Name == "[incomplete]" || f.Name == "[no stack]" || f.Name == "[lost user stack]"
	})
}
