//go:build e2e

package gadgets

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// compile compiles a program of testdata with stacks that can be unwound.
func compile(t *testing.T, name string) string {
	t.Helper()
	if program, ok := igtest.Prebuilt(name); ok {
		return program
	}
	compiled.Lock()
	defer compiled.Unlock()
	program := filepath.Join(compiled.dir, name)
	if _, err := os.Stat(program); err != nil {
		compileInto(t, compiled.dir, name)
	}
	return program
}

// compileAs compiles a program of testdata, and returns a link to it. A process that executes the link has the link's name. So a
// test can select its own process while other tests run the same program.
func compileAs(t *testing.T, source, name string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Symlink(compile(t, source), link))
	return link
}

// compiled holds the programs of testdata that compile has built.
var compiled struct {
	sync.Mutex
	dir string
}

func TestMain(m *testing.M) {
	var err error
	if compiled.dir, err = os.MkdirTemp("", "gadgets"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(compiled.dir) // a folder of temporary files
	os.Exit(code)
}

func compileInto(t *testing.T, dir, name string, flags ...string) string {
	t.Helper()
	program := filepath.Join(dir, name)
	source := filepath.Join("testdata", strings.TrimSuffix(name, ".so")+".c")
	args := append([]string{"-O0", "-fno-omit-frame-pointer", "-Wall", "-Werror", "-pthread", "-o", program, source}, flags...)
	igtest.Output(t, "clang", args...)
	return program
}

// workload is a program that runs until its standard input ends.
type workload struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout bytes.Buffer
}

// start starts a program, which ends with the test at the latest.
func start(t *testing.T, program string) *workload { return startAs(t, 0, program) }

// startAs starts a program as the user with the given ID. Its group has the number below.
func startAs(t *testing.T, uid uint32, program string) *workload {
	t.Helper()
	// The scheduler first divides CPU time between sessions. In a session of its own, the program runs, and is sampled, on a
	// busy machine.
	attr := &syscall.SysProcAttr{Setsid: true}
	if uid != 0 {
		// By default, only the owner can use a test's folders.
		for dir := filepath.Dir(program); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755))
		}
		attr.Credential = &syscall.Credential{Uid: uid, Gid: uid - 1}
	}
	return launch(t, attr, program)
}

// startLoad starts a program in this session, where an urgent ig has priority.
func startLoad(t *testing.T, program string, args ...string) *workload {
	t.Helper()
	return launch(t, nil, program, args...)
}

func launch(t *testing.T, attr *syscall.SysProcAttr, program string, args ...string) *workload {
	t.Helper()
	w := &workload{cmd: exec.Command(program, args...)}
	w.cmd.SysProcAttr = attr
	w.cmd.Stdout, w.cmd.Stderr = &w.stdout, os.Stderr
	stdin, err := w.cmd.StdinPipe()
	require.NoError(t, err)
	w.stdin = stdin
	require.NoError(t, w.cmd.Start())
	t.Cleanup(func() { w.stop(t) })
	return w
}

// stop ends the program and returns its output. Callers can call it several times.
func (w *workload) stop(t *testing.T) string {
	t.Helper()
	if w.cmd.ProcessState == nil {
		require.NoError(t, w.stdin.Close())
		require.NoError(t, w.cmd.Wait())
	}
	return w.stdout.String()
}

// accounts is the operator's closing line for a data source.
type accounts struct {
	read, exported, notExported, noStack, delivered, held, partial, dropped int64
}

var accountsLine = regexp.MustCompile(
	`data source \\?"[^"\\]+\\?": (\d+) rows read, (\d+) exported, (\d+) not exported[^,]*, (\d+) without stack; ` +
		`exporter .*: (\d+) delivered, (\d+) held, (\d+) in partly accepted requests, (\d+) dropped`)

func parseAccounts(log []byte) (accounts, error) {
	found := accountsLine.FindSubmatch(log)
	if found == nil {
		return accounts{}, fmt.Errorf("the operator's summary is missing")
	}
	var n [8]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(string(found[i+1]), 10, 64); err != nil {
			return accounts{}, err
		}
	}
	return accounts{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]}, nil
}

// run is one run of a gadget into a receiver.
type run struct {
	start, end time.Time
	flags      []string
	// printed is the gadget's output.
	printed  []byte
	rows     []map[string]any
	accounts accounts
	stats    receiver.Stats
	samples  []receiver.Sample
	findings []error
	log      []byte
}

// options are those of a run.
type options struct {
	image string
	// seconds is the least time that the run goes on after the gadget has started.
	seconds int
	flags   []string
	// quiet makes ig print no rows; output is the format if it is not JSON.
	quiet  bool
	output string
	// urgent gives ig priority over all others. It is for tests that load a few CPUs like many, where ig's share would be too
	// small.
	urgent bool
	// until, unless nil, must be true of the samples before ig is stopped, and said of ig's log. On a busy machine, a program
	// can be sampled late, and its functions can get their names late.
	until func([]receiver.Sample) bool
	said  string
	// prefix, unless nil, goes before ig's command. env extends this process's environment.
	prefix, env []string
}

func (o options) outputMode() string {
	if o.quiet {
		return "none"
	}
	return cmp.Or(o.output, "json")
}

// patience limits a run's waits.
const patience = 4 * time.Minute

// export runs a gadget for a while, and returns its output and the receiver's data. The error is ig's.
func export(t *testing.T, o options) (*run, error) {
	t.Helper()
	rcv, err := receiver.Start(receiver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rcv.Close()) })

	args := append([]string{"run", o.image}, igrun.GadgetFlags()...)
	args = append(args, "--timeout", strconv.Itoa(int(patience.Seconds())), "--otel-profiles-exporter=otlp",
		"--otel-profiles-endpoint=http://"+rcv.Addr(), "--otel-profiles-interval=2s", "--output="+o.outputMode())
	args = append(args, o.flags...)
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Minute)
	defer cancel()
	cmd := igrun.Command(ctx, igtest.Built(t, igtest.Bin, "ig"), args...)
	if o.prefix != nil {
		argv := append(append([]string{}, o.prefix...), igtest.Built(t, igtest.Bin, "ig"))
		wrapped := exec.CommandContext(ctx, argv[0], append(argv[1:], args...)...)
		wrapped.Cancel, wrapped.WaitDelay = func() error { return wrapped.Process.Signal(os.Interrupt) }, cmd.WaitDelay
		cmd = wrapped
	}
	cmd.Env = append(os.Environ(), o.env...)
	var stdout bytes.Buffer
	stderr := &igtest.Buffer{}
	cmd.Stdout, cmd.Stderr = &stdout, stderr

	r := &run{start: time.Now(), flags: o.flags}
	if err = cmd.Start(); err == nil {
		if o.urgent {
			require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, -15))
		}
		ended := make(chan struct{})
		var stopper sync.WaitGroup
		stopper.Go(func() { stopOnce(cmd.Process, o, rcv, stderr, ended) })
		err = cmd.Wait()
		close(ended)
		stopper.Wait()
	}
	r.end, r.log = time.Now(), withoutNoise(stderr.Bytes())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ig said:\n%s", withoutDebug(r.log))
		}
	})
	if err != nil {
		return r, fmt.Errorf("%s", lastError(r.log, err))
	}
	r.printed = stdout.Bytes()
	if o.outputMode() == "json" {
		r.rows = parseRows(t, bytes.NewReader(r.printed))
	}
	r.accounts, err = parseAccounts(r.log)
	require.NoError(t, err, "%s", r.log)
	r.stats, r.samples, r.findings = rcv.Stats(), rcv.Samples(), rcv.Findings()
	for _, req := range rcv.Requests() {
		r.findings = append(r.findings, otlpcheck.CheckKernelAddresses(req)...)
	}
	return r, nil
}

// stopOnce stops ig once the samples and the log are as o wants.
func stopOnce(process *os.Process, o options, rcv *receiver.Receiver, log *igtest.Buffer, ended <-chan struct{}) {
	var began time.Time
	seen := int64(-1)
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-ended:
			return
		case <-poll.C:
		}
		said := log.String()
		switch {
		case !strings.Contains(said, "exporting data source"):
		case began.IsZero():
			began = time.Now()
		case time.Since(began) < time.Duration(o.seconds)*time.Second:
		case o.said != "" && !regexp.MustCompile(o.said).MatchString(said):
		case o.until == nil:
			_ = process.Signal(os.Interrupt) // it may have ended
			return
		default: // resolving samples takes CPU time
			if n := rcv.Stats().Requests; n != seen {
				seen = n
				if o.until(rcv.Samples()) {
					o.until = nil
				}
			}
		}
	}
}

// withoutNoise omits Inspektor Gadget's lines about rows without a stack and about programs that have exited.
func withoutNoise(log []byte) []byte {
	return regexp.MustCompile(`(?m)^.*(is lost: lookup|msg="symbolizer: |signature verification).*\n`).ReplaceAll(log, nil)
}

func withoutDebug(log []byte) []byte {
	return regexp.MustCompile(`(?m)^.*level=debug.*\n`).ReplaceAll(log, nil)
}

// lastError returns the error with which ig exited.
func lastError(log []byte, err error) string {
	for line := range strings.Lines(string(log)) {
		if after, ok := strings.CutPrefix(line, "Error: "); ok {
			return strings.TrimSpace(after)
		}
	}
	return err.Error()
}

// parseRows reads a row, or an array of rows, per line.
func parseRows(t *testing.T, r io.Reader) []map[string]any {
	t.Helper()
	var rows []map[string]any
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if line[0] != '[' {
			line = append(append([]byte{'['}, line...), ']')
		}
		var some []map[string]any
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&some), "line %.500s", line)
		rows = append(rows, some...)
	}
	require.NoError(t, lines.Err())
	return rows
}

// number reads a field of a row.
func number(t *testing.T, row map[string]any, path ...string) int64 {
	t.Helper()
	var v any = row
	for _, name := range path {
		fields, ok := v.(map[string]any)
		require.True(t, ok, "%v in %v", path, row)
		v = fields[name]
	}
	n, ok := v.(json.Number)
	require.True(t, ok, "%v in %v", path, row)
	i, err := n.Int64()
	require.NoError(t, err)
	return i
}

// requireSound checks the requests of any gadget: no rule of the protocol is broken, and every row is accounted for.
func (r *run) requireSound(t *testing.T) {
	t.Helper()
	for i, f := range r.findings {
		if i < 20 {
			t.Errorf("protocol: %v", f)
		}
	}
	a := r.accounts
	require.EqualValues(t, len(r.rows), a.read, "rows printed and read")
	require.Equal(t, a.read, a.exported+a.notExported)
	require.Equal(t, a.exported, a.delivered+a.held+a.partial+a.dropped)
	require.Zero(t, a.held)
	require.Zero(t, a.partial)
	require.Zero(t, a.dropped)
	require.Zero(t, r.stats.Dropped, "requests that were not kept")
	for _, s := range r.samples {
		r.requireSoundSample(t, s)
	}
}

// tracing matches functions that only tracing itself has at the leaf of a stack.
var tracing = regexp.MustCompile(`^(bpf_prog_[0-9a-f]{16}|bpf_trace_run|__bpf_trace|__traceiter_|bpf_get_stack|bpf_trampoline|trace_call_bpf)`)

// marks are not functions, so they have no type. At the root, they say which part of a stack is missing.
var marks = []string{"[no stack]", "[lost user stack]", "[truncated]", "[incomplete]"}

func (r *run) requireSoundSample(t *testing.T, s receiver.Sample) {
	t.Helper()
	require.NotEmpty(t, s.Service, "outside containers, the service is the unit, the executable, or host")
	require.NotContains(t, s.Resource, "container.id")
	require.False(t, s.Start.Before(r.start), "starts %s, ig was started %s", s.Start, r.start)
	require.False(t, s.End.After(r.end), "ends %s, ig had ended %s", s.End, r.end)
	require.True(t, s.Start.Before(s.End))
	for _, ts := range s.Timestamps {
		require.LessOrEqual(t, uint64(r.start.UnixNano()), ts)
		require.LessOrEqual(t, ts, uint64(r.end.UnixNano()))
	}
	require.NotEmpty(t, s.Stack, "no flame graph shows a sample without a frame")
	user := false
	for i, f := range s.Stack {
		require.False(t, user && f.Type == "kernel", "the kernel calls no program: %v", s.Stack)
		user = f.Type != "kernel"
		if root := i == len(s.Stack)-1; !root || !slices.Contains(marks, f.Name) {
			require.NotEmpty(t, f.Type, "frame %d of %v", i, s.Stack)
		}
		require.False(t, f.Name == "" && f.Address == 0, "frame %d of %v has no information", i, s.Stack)
		// A CPU sampler also samples other programs' tracing, such as an unwinder's. That is the workload's time.
		if i == 0 && f.Type == "kernel" && s.PeriodType != "cpu" {
			require.False(t, tracing.MatchString(f.Name), "the tracing is on the stack: %v", s.Stack)
		}
	}
}

// of returns the samples of threads of that name.
func (r *run) of(thread string) []receiver.Sample { return of(r.samples, thread) }

func of(samples []receiver.Sample, thread string) []receiver.Sample {
	var found []receiver.Sample
	for _, s := range samples {
		if s.Attributes["thread.name"] == thread {
			found = append(found, s)
		}
	}
	return found
}
