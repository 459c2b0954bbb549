//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// patience limits how long a test waits. A busy machine takes longer than an idle one.
const patience = 4 * time.Minute

// asIDs makes a gadget pass stacks as IDs instead of text.
const asIDs = "--format-stacks=false"

// session is a gadget that runs in ig and exports to its own Collector.
type session struct {
	t         *testing.T
	cmd       *exec.Cmd
	collector *collectortest.Collector
	stdout    bytes.Buffer
	log       *igtest.Buffer
	ended     chan error
	began     time.Time
}

// begin starts a gadget with the exporter from a config file. The gadget ends with the test at the latest. prefix, if set,
// replaces the usual words before ig's command.
func begin(t *testing.T, prefix []string, image string, flags ...string) *session {
	t.Helper()
	s := &session{t: t, collector: startCollector(t), log: &igtest.Buffer{}, ended: make(chan error, 1), began: time.Now()}
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
        attributes: ["process.pid=sample"]
        max_values_per_attribute: 0
        shutdown_timeout: 2m
`, s.collector.GRPC), 0o600))
	args := append([]string{"--config", config, "run", image}, igrun.GadgetFlags()...)
	args = append(args, "--otel-profiles-exporter=my-collector", "--otel-profiles-interval=2s", "--output=json")
	args = append(args, flags...)
	ctx, cancel := context.WithCancel(context.Background())
	s.cmd = igCommand(ctx, t, args...)
	if prefix != nil {
		argv := slices.Concat(prefix, []string{igtest.Built(t, igtest.Bin, "ig")}, args)
		s.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
		s.cmd.Cancel = func() error { return s.cmd.Process.Signal(os.Interrupt) }
		s.cmd.WaitDelay = patience
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, s.log
	require.NoError(t, s.cmd.Start())
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-s.ended
		if t.Failed() {
			t.Logf("ig said:\n%s", withoutNoise(s.log.Bytes()))
		}
	})
	return s
}

// wait waits until a condition is true while ig runs.
func (s *session) wait(what string, happened func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !happened(); {
		require.True(s.t, time.Now().Before(deadline), "timed out waiting for %s after %v", what, patience)
		select {
		case err := <-s.ended:
			s.ended <- err
			require.FailNow(s.t, "ig has ended before "+what, "%v", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// until waits until enough samples have arrived at the Collector.
func (s *session) until(what string, enough func([]receiver.Sample) bool) {
	s.t.Helper()
	arrived := int64(-1)
	s.wait(what, func() bool {
		size := s.collector.Size()
		if size == arrived { // resolving takes CPU time
			return false
		}
		arrived = size
		return enough(samplesOf(s.collector.SoFar()))
	})
}

// seesAll starts a program, and ends it once each session has shown a sample of one of its functions. From then on, the sessions
// see new programs from their start, with names.
func seesAll(t *testing.T, program, function string, sessions ...*session) {
	t.Helper()
	p := start(t, program)
	for _, s := range sessions {
		s.until("a sample of "+function, func(samples []receiver.Sample) bool { return len(igtest.Through(of(samples, p.pid), function)) > 0 })
	}
	p.stop(t)
}

// run is one run of a gadget into a Collector.
type run struct {
	start, end time.Time
	rows       []map[string]any
	summary    summary
	samples    []receiver.Sample
	log        string
}

// stop interrupts ig as a user does, and then stops the Collector. It returns the output of both. It checks that the run breaks no
// protocol rule and loses no row or value.
func (s *session) stop(values ...string) *run {
	t := s.t
	t.Helper()
	_ = s.cmd.Process.Signal(os.Interrupt) // if it has exited, require below reports that
	err := <-s.ended
	s.ended <- err
	require.NoError(t, err)
	r := &run{start: s.began, end: time.Now(), log: string(s.log.Bytes())}
	r.rows = parseRows(t, &s.stdout)
	r.summary = parseSummary(t, s.log.Bytes())
	s.collector.Stop()
	requests := s.collector.Received()
	for _, req := range requests {
		for _, err := range append(otlpcheck.Check(req), otlpcheck.CheckKernelAddresses(req)...) {
			v := &otlpcheck.Violation{}
			require.ErrorAs(t, err, &v)
			require.Contains(t, ofTheCollector, v.Rule, "%v", err)
		}
	}
	r.samples = samplesOf(requests)
	r.requireNothingLost(t, values)
	return r
}

// ofTheCollector lists the rules that the Collector's output file breaks. attribute_table[0] gets an empty value, and
// resources' texts are in the string table.
var ofTheCollector = []otlpcheck.Rule{otlpcheck.RuleTableZero, otlpcheck.RulePlain}

// summary matches the operator's closing line for a data source.
type summary struct {
	read, exported, noStack, delivered, held, dropped int64
}

var summaryLine = regexp.MustCompile(
	`(\d+) rows read, (\d+) exported, .* (\d+) without stack; exporter .*: (\d+) delivered, (\d+) held, .* (\d+) dropped`)

// withoutNoise removes Inspektor Gadget's lines about rows without a kernel stack and about exited programs.
func withoutNoise(log []byte) []byte {
	return regexp.MustCompile(`(?m)^.*(is lost: lookup|msg"?[=:]"symbolizer: ).*\n`).ReplaceAll(log, nil)
}

// parseRows reads one array of rows per line.
func parseRows(t *testing.T, r io.Reader) []map[string]any {
	t.Helper()
	var rows []map[string]any
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var some []map[string]any
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&some), "line %.500s", lines.Text())
		rows = append(rows, some...)
	}
	require.NoError(t, lines.Err())
	return rows
}

func parseSummary(t *testing.T, log []byte) summary {
	t.Helper()
	found := summaryLine.FindSubmatch(log)
	require.NotNil(t, found, "the operator's summary is missing in:\n%s", log)
	var n [6]int64
	for i := range n {
		var err error
		n[i], err = strconv.ParseInt(string(found[i+1]), 10, 64)
		require.NoError(t, err)
	}
	return summary{n[0], n[1], n[2], n[3], n[4], n[5]}
}

// requireNothingLost adds up rows and values on both sides of the exporter. Each sample type has a field in the rows, in the order
// of the type names. Without fields, values are not added up.
func (r *run) requireNothingLost(t *testing.T, fields []string) {
	t.Helper()
	t.Logf("%d rows printed; %+v", len(r.rows), r.summary)
	require.NotEmpty(t, r.rows)
	require.EqualValues(t, len(r.rows), r.summary.read)
	require.Equal(t, r.summary.read, r.summary.exported)
	require.Equal(t, r.summary.read, r.summary.delivered)
	require.Zero(t, r.summary.held)
	require.Zero(t, r.summary.dropped)

	types, by := receiver.ByType(r.samples)
	slices.SortFunc(types, func(a, b receiver.Type) int { return strings.Compare(a.Type, b.Type) })
	require.True(t, len(fields) == 0 || len(types) == len(fields), "%v", types)
	for i, field := range fields {
		read := int64(0)
		for _, row := range r.rows {
			value, ok := row[field].(json.Number)
			require.True(t, ok, "%s in %v", field, row)
			n, err := value.Int64()
			require.NoError(t, err)
			read += n
		}
		require.Equal(t, read, igtest.Total(by[types[i]]), "%s in rows, %v in samples", field, types[i])
	}
	for _, s := range r.samples {
		require.False(t, s.Start.Before(r.start), "starts %s, ig was started %s", s.Start, r.start)
		require.False(t, s.End.After(r.end), "ends %s, ig had ended %s", s.End, r.end)
		require.False(t, s.End.Before(s.Start))
		require.NotEmpty(t, s.Stack)
	}
}

// samplesOf returns the samples of requests.
func samplesOf(requests []*collectorpb.ExportProfilesServiceRequest) []receiver.Sample {
	var samples []receiver.Sample
	for _, req := range requests {
		samples = append(samples, receiver.Resolve(req)...)
	}
	return samples
}

// of returns a process's samples after execve. Before execve, the process is a copy of the test process and has its name.
func of(samples []receiver.Sample, pid int) []receiver.Sample {
	own, _ := os.ReadFile("/proc/self/comm") // every Linux has this file
	return slices.DeleteFunc(slices.Clone(samples), func(s receiver.Sample) bool {
		return s.Attributes["process.pid"] != strconv.Itoa(pid) || s.Attributes["thread.name"] == strings.TrimSpace(string(own))
	})
}

// startCollector starts a Collector that writes its input to a file.
func startCollector(t *testing.T) *collectortest.Collector {
	t.Helper()
	c := collectortest.New(t, "file")
	c.Start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the Collector said:\n%s", c.Log())
		}
	})
	return c
}

// igCommand returns a command that runs the built ig.
func igCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return igrun.Command(ctx, igtest.Built(t, igtest.Bin, "ig"), args...)
}
