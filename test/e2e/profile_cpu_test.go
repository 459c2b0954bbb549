//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// seconds is how long each run samples, if not longer: see enoughCPU.
func seconds(t *testing.T) int {
	t.Helper()
	value := os.Getenv("E2E_SECONDS")
	if value == "" {
		return 10
	}
	n, err := strconv.Atoi(value)
	require.NoError(t, err, "E2E_SECONDS")
	return n
}

// row is what a gadget prints of a row.
type row struct {
	Samples int64 `json:"samples"`
	Proc    struct {
		Comm string `json:"comm"`
		PID  int    `json:"pid"`
	} `json:"proc"`
}

// summary is the operator's last word on a data source.
type summary struct {
	read, exported, noStack, delivered, held, dropped int64
}

var summaryLine = regexp.MustCompile(
	`(\d+) rows read, (\d+) exported, .* (\d+) without their stack; exporter .*: (\d+) delivered, (\d+) held, .* (\d+) dropped`)

// run is one run of a gadget into a Collector.
type run struct {
	start, end time.Time
	rows       []row
	summary    summary
	samples    []receiver.Sample
}

// export runs a gadget for a while, with the exporter that a config file names,
// and returns both what the gadget printed and what the Collector wrote.
func export(t *testing.T, image string, flags ...string) run {
	t.Helper()
	return exportUntil(t, nil, image, flags...)
}

// untilLimit is for how many seconds a run goes on until there is enough.
const untilLimit = 120

// exportUntil is export that goes on until there is enough, if enough is not nil. enough is called again and again
// from when the gadget runs.
func exportUntil(t *testing.T, enough func() bool, image string, flags ...string) run {
	t.Helper()
	c := startCollector(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
operator:
  otel-profiles:
    exporters:
      my-collector:
        exporter: otlp-grpc
        endpoint: %q
        insecure: true
        compression: gzip
`, c.GRPC), 0o600))

	args := append([]string{"--config", config, "run", image}, igrun.GadgetFlags()...)
	timeout := seconds(t)
	if enough != nil {
		timeout = untilLimit
	}
	args = append(args, "--timeout", strconv.Itoa(timeout), "--otel-profiles-exporter=my-collector",
		"--otel-profiles-interval=2s", "--output", "json")
	cmd := igCommand(t.Context(), t, append(args, flags...)...)
	var stdout bytes.Buffer
	stderr := &igtest.Buffer{}
	cmd.Stdout, cmd.Stderr = &stdout, stderr

	r := run{start: time.Now()}
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	var began time.Time
	poll := time.NewTicker(250 * time.Millisecond)
	defer poll.Stop()
	for running, asked := true, false; running; {
		select {
		case err = <-ended:
			running = false
		case <-poll.C:
			switch {
			case enough == nil || asked:
			case began.IsZero():
				if bytes.Contains(stderr.Bytes(), []byte("exporting data source")) {
					began = time.Now()
				}
			case enough() && time.Since(began) >= time.Duration(seconds(t))*time.Second:
				asked = true
				_ = cmd.Process.Signal(os.Interrupt) // it may have ended
			}
		}
	}
	r.end = time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ig said:\n%s", withoutNoise(stderr.Bytes()))
		}
	})
	require.NoError(t, err)
	r.rows = parseRows(t, &stdout)
	r.summary = parseSummary(t, stderr.Bytes())
	r.samples = received(t, c)
	t.Logf("%d rows read, %d exported, %d without their stack, %d delivered, %d held, %d dropped",
		r.summary.read, r.summary.exported, r.summary.noStack, r.summary.delivered, r.summary.held, r.summary.dropped)
	return r
}

// withoutNoise leaves out what Inspektor Gadget says about every row without a
// kernel stack and of every program that has ended.
func withoutNoise(log []byte) []byte {
	return regexp.MustCompile(`(?m)^.*(is lost: lookup|msg"?[=:]"symbolizer: ).*\n`).ReplaceAll(log, nil)
}

// parseRows reads an array of rows per line.
func parseRows(t *testing.T, r io.Reader) []row {
	t.Helper()
	var rows []row
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var some []row
		require.NoError(t, json.Unmarshal(lines.Bytes(), &some), "line %s", lines.Text())
		rows = append(rows, some...)
	}
	require.NoError(t, lines.Err())
	return rows
}

func parseSummary(t *testing.T, log []byte) summary {
	t.Helper()
	found := summaryLine.FindSubmatch(log)
	require.NotNil(t, found, "the operator's summary is not in:\n%s", log)
	var n [6]int64
	for i := range n {
		var err error
		n[i], err = strconv.ParseInt(string(found[i+1]), 10, 64)
		require.NoError(t, err)
	}
	return summary{n[0], n[1], n[2], n[3], n[4], n[5]}
}

// requireNothingLost adds up rows and values on both sides of the exporter.
func (r run) requireNothingLost(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, r.rows)
	require.EqualValues(t, len(r.rows), r.summary.read)
	require.Equal(t, r.summary.read, r.summary.exported)
	require.Equal(t, r.summary.read, r.summary.delivered)
	require.Zero(t, r.summary.held)
	require.Zero(t, r.summary.dropped)

	var read, delivered int64
	for _, row := range r.rows {
		read += row.Samples
	}
	for _, s := range r.samples {
		delivered += s.Total()
	}
	t.Logf("values: %d read, %d delivered, %d lost", read, delivered, read-delivered)
	require.Equal(t, read, delivered)
}

// of returns the samples of threads of that name.
func (r run) of(thread string) []receiver.Sample {
	var found []receiver.Sample
	for _, s := range r.samples {
		if s.Attributes["thread.name"] == thread {
			found = append(found, s)
		}
	}
	return found
}

// program is one that burns CPU: 60 % in heavy, 30 % in light and 10 % in rest,
// which each are called by work.
type program struct {
	thread                   string
	heavy, light, rest, work string
	// restInKernel says that rest is a function that spends its time in the kernel.
	restInKernel bool
}

// requireShares checks what the profile says of a program.
func (r run) requireShares(t *testing.T, p program, period int64, cpu time.Duration) {
	t.Helper()
	samples := r.of(p.thread)
	require.NotEmpty(t, samples, "no samples of %s", p.thread)
	at := map[string]int64{}
	all := int64(0)
	sampled := 0.0
	for _, s := range samples {
		require.Equal(t, p.thread, s.Service, "the executable")
		require.Equal(t, receiver.Type{Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: period}, receiver.TypeOf(s))
		require.False(t, s.Start.Before(r.start), "starts %s, ig was started %s", s.Start, r.start)
		require.False(t, s.End.After(r.end), "ends %s, ig had ended %s", s.End, r.end)
		require.True(t, s.Start.Before(s.End))
		seconds, ok := s.Seconds()
		require.True(t, ok)
		sampled += seconds

		work := slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Name == p.work })
		if work < 1 {
			continue
		}
		all += s.Total()
		callee := s.Stack[work-1]
		at[callee.Name] += s.Total()
		requireOrder(t, s, work)
		if callee.Name == p.rest && p.restInKernel && len(s.Stack[:work]) > 1 {
			require.Equal(t, "kernel", s.Stack[0].Type, "below %s is the kernel: %v", p.rest, s.Stack)
		}
	}
	require.Positive(t, all, "%s is in no stack of %s", p.work, p.thread)
	for _, want := range []struct {
		function string
		percent  float64
	}{{p.heavy, 60}, {p.light, 30}, {p.rest, 10}} {
		share := 100 * float64(at[want.function]) / float64(all)
		t.Logf("%s: %s %.1f%% (true: %.0f%%)", p.thread, want.function, share, want.percent)
		require.InDelta(t, want.percent, share, 10, want.function)
	}
	require.Greater(t, at[p.heavy], at[p.light])
	require.Greater(t, at[p.light], at[p.rest])
	t.Logf("%s: %.2f s of CPU time sampled, %.2f s taken from its start to its end", p.thread, sampled, cpu.Seconds())
	require.LessOrEqual(t, sampled, 1.3*cpu.Seconds())
}

// requireOrder checks that the kernel's frames come before the program's.
func requireOrder(t *testing.T, s receiver.Sample, work int) {
	t.Helper()
	require.NotEqual(t, "kernel", s.Stack[work].Type)
	user := slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return f.Type != "kernel" })
	last := len(s.Stack) - 1
	for ; s.Stack[last].Type != "kernel" && last > user; last-- {
	}
	require.LessOrEqual(t, last, user, "kernel frames between the program's: %v", s.Stack)
}

// enoughCPU tells whether each program has taken as much CPU time, since it was first asked, as gives 200 samples at 49 a
// second: shares within 10 points take so many. On a machine that is busy with other things that takes a while.
func enoughCPU(t *testing.T, programs map[string]*busy) func() bool {
	begin := map[string]time.Duration{}
	return func() bool {
		all := true
		for name, b := range programs {
			taken := b.taken(t)
			if _, ok := begin[name]; !ok {
				begin[name] = taken
			}
			all = all && taken-begin[name] >= 4*time.Second
		}
		return all
	}
}

func TestProfileCPU(t *testing.T) {
	igtest.NeedRoot(t)
	programs := []program{
		{"burn-go", "main.heavy", "main.light", "main.rest", "main.work", false},
		{"burn-c", "c_heavy", "c_light", "c_kernel", "c_work", true},
	}
	paths := map[string]string{
		"burn-go": compileGo(t, "./burn", "burn-go"),
		"burn-c":  compileC(t, "burn.c", "burn-c"),
	}

	for _, tc := range []struct {
		name   string
		image  func(*testing.T) string
		flags  []string
		period int64
	}{
		{
			name:   "of this project",
			image:  func(t *testing.T) string { return igtest.Import(t, "profile_cpu") },
			flags:  []string{"--frequency=99"},
			period: 1_000_000_000 / 99,
		},
		{
			name:   "of this project, stacks as IDs",
			image:  func(t *testing.T) string { return igtest.Import(t, "profile_cpu") },
			flags:  []string{"--frequency=99", "--format-stacks=false"},
			period: 1_000_000_000 / 99,
		},
		{
			name:   "of Inspektor Gadget",
			image:  func(t *testing.T) string { return buildUpstream(t, "profile_cpu") },
			flags:  []string{"--collect-ustack"},
			period: 1_000_000_000 / 49,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			image := tc.image(t)
			running := map[string]*busy{}
			for name, path := range paths {
				running[name] = startBusy(t, path)
			}
			r := exportUntil(t, enoughCPU(t, running), image, tc.flags...)
			r.requireNothingLost(t)
			for _, p := range programs {
				r.requireShares(t, p, tc.period, running[p.thread].stop(t))
			}
		})
	}
}

// TestStackChurn has a program go through far more stacks than the gadget
// remembers. Every stack has to be there when its row is read.
func TestStackChurn(t *testing.T) {
	igtest.NeedRoot(t)
	const entries = 1024
	image := igtest.Import(t, "profile_cpu")
	program := compileC(t, "churn.c", "churn")
	for _, format := range []bool{true, false} {
		t.Run(fmt.Sprintf("format-stacks=%t", format), func(t *testing.T) { testStackChurn(t, image, program, entries, format) })
	}
}

func testStackChurn(t *testing.T, image, program string, entries int, format bool) {
	churn := startBusy(t, program)
	r := export(t, image, "--comm=churn", "--frequency=999", "--map-fetch-interval=200ms",
		fmt.Sprintf("--stack-entries=%d", entries), fmt.Sprintf("--kernel-stack-entries=%d", entries),
		fmt.Sprintf("--format-stacks=%t", format))
	churn.stop(t)
	r.requireNothingLost(t)
	require.Zero(t, r.summary.noStack)

	stacks := map[string]bool{}
	for _, s := range r.of("churn") {
		require.NotEmpty(t, s.Stack)
		key := ""
		for _, f := range s.Stack {
			key += f.Label() + ";"
		}
		stacks[key] = true
	}
	t.Logf("%d different stacks through a map of %d", len(stacks), entries)
	require.Greater(t, len(stacks), entries)
}
