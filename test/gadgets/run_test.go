//go:build e2e

package gadgets

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// start starts a program, which ends with the test at the latest.
func start(t *testing.T, program string, args ...string) *igtest.Program {
	t.Helper()
	return igtest.StartProgram(t, exec.Command(program, args...))
}

// startAs starts a program as a user other than root. Its group has the number below.
func startAs(t *testing.T, uid uint32, program string) *igtest.Program {
	t.Helper()
	// By default, only the owner can use a test's folders.
	for dir := filepath.Dir(program); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	return startWith(t, &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid - 1}}, program)
}

// startLoad starts a program in this session, where an urgent ig has priority.
func startLoad(t *testing.T, program string, args ...string) *igtest.Program {
	t.Helper()
	return startWith(t, &syscall.SysProcAttr{}, program, args...)
}

func startWith(t *testing.T, attr *syscall.SysProcAttr, program string, args ...string) *igtest.Program {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = attr
	return igtest.StartProgram(t, cmd)
}

// run is one run of a gadget into a receiver.
type run struct {
	start, end time.Time
	flags      []string
	// printed is the gadget's output.
	printed  []byte
	rows     []map[string]any
	accounts igtest.Accounts
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
	// prefix goes before ig's command. env extends this process's environment.
	prefix, env []string
}

func (o options) outputMode() string {
	if o.quiet {
		return "none"
	}
	return cmp.Or(o.output, "json")
}

// export runs a gadget for a while, and returns its output and the receiver's data. The error is ig's.
func export(t *testing.T, o options) (*run, error) {
	t.Helper()
	rcv := igtest.Receiver(t)
	command := slices.Concat(o.prefix, []string{igtest.Built(t, igtest.Bin, "ig"), "run", o.image}, igrun.GadgetFlags(), igtest.ExportTo(rcv),
		[]string{fmt.Sprintf("--timeout=%.0f", igtest.Patience.Seconds()), "--output=" + o.outputMode()}, o.flags)
	ctx, cancel := context.WithTimeout(t.Context(), igtest.Patience+time.Minute)
	defer cancel()
	cmd := igrun.Command(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), o.env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	r := &run{start: time.Now(), flags: o.flags}
	ig := igtest.StartCommand(t, cmd)
	if o.urgent {
		require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, ig.PID, -15))
	}
	stopOnce(ig, o, rcv)
	<-ig.Ended
	r.end, r.log = time.Now(), igtest.WithoutNoise(ig.Log.Bytes())
	if ig.Err != nil {
		return r, errors.New(lastError(r.log, ig.Err))
	}
	r.printed = stdout.Bytes()
	if o.outputMode() == "json" {
		r.rows = igtest.ParseRows(t, r.printed)
	}
	r.accounts = igtest.ReadAccounts(t, string(r.log))
	r.stats, r.samples, r.findings = rcv.Stats(), rcv.Samples(), rcv.Findings()
	for _, req := range rcv.Requests() {
		r.findings = append(r.findings, otlpcheck.CheckKernelAddresses(req)...)
	}
	return r, nil
}

// stopOnce stops ig once the samples and the log are as o wants.
func stopOnce(ig *igtest.Run, o options, rcv *receiver.Receiver) {
	var began time.Time
	seen := int64(-1)
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-ig.Ended:
			return
		case <-poll.C:
		}
		said := ig.Log.String()
		switch {
		case !strings.Contains(said, "exporting data source"):
		case began.IsZero():
			began = time.Now()
		case time.Since(began) < time.Duration(o.seconds)*time.Second:
		case o.said != "" && !regexp.MustCompile(o.said).MatchString(said):
		case o.until == nil:
			ig.Interrupt()
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

// lastError returns the error with which ig exited.
func lastError(log []byte, err error) string {
	for line := range strings.Lines(string(log)) {
		if after, ok := strings.CutPrefix(line, "Error: "); ok {
			return strings.TrimSpace(after)
		}
	}
	return err.Error()
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
	require.EqualValues(t, len(r.rows), a.Read, "rows printed and read")
	require.Equal(t, a.Read, a.Exported+a.NotExported)
	require.Equal(t, a.Exported, a.Delivered+a.Held+a.Partial+a.Dropped)
	require.Zero(t, a.Held)
	require.Zero(t, a.Partial)
	require.Zero(t, a.Dropped)
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
