//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// asIDs makes a gadget pass stacks as IDs instead of text.
const asIDs = "--format-stacks=false"

// session is a gadget that runs in ig and exports to its own Collector.
type session struct {
	*igtest.Run
	t         *testing.T
	collector *collectortest.Collector
	stdout    bytes.Buffer
	began     time.Time
}

// begin starts a gadget with an exporter from a config file. The gadget ends with the test at the latest.
func begin(t *testing.T, image string, flags ...string) *session {
	t.Helper()
	s := &session{t: t, collector: startCollector(t), began: time.Now()}
	cmd := igtest.Command(t, image, append([]string{
		"--config=" + igtest.EverySample(t, s.collector.GRPC), "--otel-profiles-exporter=truth", "--otel-profiles-interval=2s", "--output=json",
	}, flags...)...)
	cmd.Stdout = &s.stdout
	s.Run = igtest.StartCommand(t, cmd)
	return s
}

// until waits until enough samples have arrived at the Collector.
func (s *session) until(what string, enough func([]receiver.Sample) bool) {
	s.t.Helper()
	arrived := int64(-1)
	s.Wait(what, func() bool {
		size := s.collector.Size()
		if size == arrived { // resolving takes CPU time
			return false
		}
		arrived = size
		return enough(receiver.ResolveAll(s.collector.SoFar()))
	})
}

// seesAll starts a program, and ends it once each session has shown a sample of one of its functions. From then on, the sessions
// see new programs from their start, with names.
func seesAll(t *testing.T, program, function string, sessions ...*session) {
	t.Helper()
	p := start(t, program)
	for _, s := range sessions {
		s.until("a sample of "+function, func(samples []receiver.Sample) bool { return len(igtest.Through(of(samples, p.PID), function)) > 0 })
	}
	p.Stop()
}

// run is one run of a gadget into a Collector.
type run struct {
	start, end time.Time
	rows       []map[string]any
	accounts   igtest.Accounts
	samples    []receiver.Sample
	log        string
}

// stop interrupts ig as a user does, and then stops the Collector. It returns the output of both. It checks that the run breaks no
// protocol rule and loses no row or value.
func (s *session) stop(values ...string) *run {
	t := s.t
	t.Helper()
	s.Stop()
	r := &run{start: s.began, end: time.Now(), log: s.Log.String(), rows: igtest.ParseRows(t, s.stdout.Bytes())}
	r.accounts = igtest.ReadAccounts(t, r.log)
	s.collector.Stop()
	requests := s.collector.Received()
	for _, req := range requests {
		for _, err := range append(otlpcheck.Check(req), otlpcheck.CheckKernelAddresses(req)...) {
			v := &otlpcheck.Violation{}
			require.ErrorAs(t, err, &v)
			require.Contains(t, ofTheCollector, v.Rule, "%v", err)
		}
	}
	r.samples = receiver.ResolveAll(requests)
	r.requireNothingLost(t, values)
	return r
}

// ofTheCollector lists the rules that the Collector's output file breaks. attribute_table[0] gets an empty value, and
// resources' texts are in the string table.
var ofTheCollector = []otlpcheck.Rule{otlpcheck.RuleTableZero, otlpcheck.RulePlain}

// requireNothingLost adds up rows and values on both sides of the exporter. Each sample type has a field in the rows, in the order
// of the type names. Without fields, values are not added up.
func (r *run) requireNothingLost(t *testing.T, fields []string) {
	t.Helper()
	t.Logf("%d rows printed; %+v", len(r.rows), r.accounts)
	require.NotEmpty(t, r.rows)
	require.EqualValues(t, len(r.rows), r.accounts.Read)
	require.Equal(t, r.accounts.Read, r.accounts.Exported)
	require.Equal(t, r.accounts.Read, r.accounts.Delivered)
	require.Zero(t, r.accounts.Held)
	require.Zero(t, r.accounts.Dropped)

	types, by := receiver.ByType(r.samples)
	slices.SortFunc(types, func(a, b receiver.Type) int { return strings.Compare(a.Type, b.Type) })
	require.True(t, len(fields) == 0 || len(types) == len(fields), "%v", types)
	for i, field := range fields {
		read := int64(0)
		for _, row := range r.rows {
			read += igtest.Number(t, row, field)
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
