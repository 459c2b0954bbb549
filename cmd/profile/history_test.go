package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
	otlp "github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// recorded writes a history of the last hour of a shop and a database. The shop hashes. In the second half hour, it also sorts.
func recorded(t *testing.T, now time.Time) (dir string) {
	t.Helper()
	return recordedExcept(t, now, now, now)
}

// recordedExcept writes the same history, but records nothing between two times.
func recordedExcept(t *testing.T, now, from, to time.Time) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "history")
	w, err := history.New(dir, config.Retention{MaxBytes: 1 << 30}, func(err error) { t.Error(err) })
	require.NoError(t, err)
	agg := otlp.New(otlp.Config{
		Scope: otlp.Scope{Name: "registry.example/profile_cpu", Version: "v1"}, Types: []otlp.ValueType{{Type: "samples", Unit: "count"}},
		PeriodType: otlp.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 10_000_000,
	})
	put := func(service, function string, n int64) {
		res, key := uint64(len(service)), uint64(len(service)*1000+len(function))
		agg.SetResource(res, otlp.Resource{Attributes: []otlp.Attribute{{Key: "service.name", Value: otlp.String(service)}}})
		stack := []otlp.Frame{{Name: function, Type: otlp.FrameGo}, {Name: "main.main", Type: otlp.FrameGo}}
		require.Equal(t, otlp.Added, agg.Insert(res, key, otlp.Sample{Stack: stack}, []int64{n}, 0))
	}
	for at := now.Add(-time.Hour); at.Before(now); at = at.Add(10 * time.Second) {
		if !at.Before(from) && at.Before(to) {
			continue
		}
		put("shop", "main.hash", 300)
		put("database", "main.scan", 100)
		if now.Sub(at) <= 30*time.Minute {
			put("shop", "main.sortAll", 600)
		}
		end := at.Add(10 * time.Second)
		for _, m := range agg.Flush(uint64(at.UnixNano()), uint64(end.UnixNano()), otlp.Limits{}).Messages {
			require.Equal(t, attempt.Accepted, w.Send(t.Context(), wire.Message{Body: m.Body, Rows: m.Rows, Samples: m.Samples, Start: at, End: end}).Verdict)
		}
	}
	require.NoError(t, w.Close())
	return dir
}

func TestHistory(t *testing.T) {
	now := time.Now()
	from := "--from=" + recorded(t, now)
	t.Chdir(t.TempDir())
	ask := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		require.NoError(t, runHistory(append([]string{from}, args...), &out))
		return out.String()
	}

	said := ask("--since=2h", "-o=all")
	require.Contains(t, said, "360 requests, 900 rows") // two in each interval, and a third in the second half
	require.Regexp(t, `(?m)^ +42\.9% +42\.9% +1080\.00 +108000 +shop +main\.sortAll$`, said)
	require.Regexp(t, `(?m)^ +85\.7% +2160\.00 +shop$`, said)
	require.Regexp(t, `(?m)^ +14\.3% +360\.00 +database$`, said)
	require.Contains(t, said, "2520.00 seconds (252000 samples) in all, in 3600 s")
	for _, file := range []string{samplesFile, runFile, pageFile, receiver.PprofFile} {
		info, err := os.Stat(filepath.Join("all", file))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	// The command writes the same files as a run.
	info, samples, err := load("all")
	require.NoError(t, err)
	require.InDelta(t, 3600, info.Seconds, 1)
	require.EqualValues(t, 252_000, igtest.Total(samples))

	said = ask("--since=2h", "--service=database", "--gadget=cpu", "-o=database")
	require.NotContains(t, said, "sortAll")
	require.NotRegexp(t, `(?m)SERVICE$`, said, "there is one")
	require.Contains(t, said, "360.00 seconds (36000 samples) in all")

	early := now.Add(-50 * time.Minute)
	said = ask("--at="+early.Format("2006-01-02 15:04:05"), "--for=5m", "-o=early")
	require.Contains(t, said, "120.00 seconds (12000 samples) in all")

	said = ask("list")
	require.Regexp(t, `profile_cpu +samples +shop +216000 +count`, said)
	require.Contains(t, said, "900 rows")
	// A gadget has the same names in a query and in the list.
	for _, gadget := range []string{"cpu", "profile_cpu", "profile_cpu:v1", "registry.example/profile_cpu:v1", "registry.example/profile_cpu@sha256:12"} {
		require.Contains(t, ask("--since=2h", "--gadget="+gadget, "-o=gadget"), "2520.00 seconds")
		require.Regexp(t, `profile_cpu +samples +shop`, ask("list", "--gadget="+gadget))
	}
	require.NotContains(t, ask("list", "--gadget=lock"), "shop")
	require.Regexp(t, `samples +database .*`+regexp.QuoteMeta(shownTime(now.Add(-time.Hour)))+` +`+regexp.QuoteMeta(shownTime(now))+`\n`, said)
	for filter, rest := range map[string]string{"--service=database": "database", "--service=other": "", "--gadget=cpu": "database,shop", "--gadget=offcpu": ""} {
		var found []string
		for _, m := range regexp.MustCompile(`(?m)^profile_cpu +samples +(\w+)`).FindAllStringSubmatch(ask("list", filter), -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		require.Equal(t, rest, strings.Join(found, ","), filter)
	}

	var out bytes.Buffer
	late := now.Add(-20 * time.Minute)
	at := func(t time.Time) string { return t.Format("2006-01-02T15:04:05") + "+5m" }
	require.NoError(t, runDiff([]string{at(early), at(late), from, "--service=shop", "-o=none"}, &out))
	require.Regexp(t, `sortAll`, out.String())
	require.Contains(t, out.String(), "before: shop, 300 s")
	require.NotContains(t, out.String(), "scan")
	require.NoError(t, runDiff([]string{early.Format(time.DateTime) + "+5m", at(late), from}, &out))
	require.FileExists(t, fmt.Sprintf("difference-%s+5m-%s+5m.html", early.Format("2006-01-02-150405"), late.Format("2006-01-02T150405")))
}

// The page must have a timeline with the answer's steps. The pprof file and a copy of the folder must contain the same values.
func TestHistoryFiles(t *testing.T) {
	now := time.Now()
	dir := recorded(t, now)
	t.Chdir(t.TempDir())
	require.NoError(t, os.CopyFS("copy", os.DirFS(dir)))
	early := now.Add(-50 * time.Minute)
	var out, copied bytes.Buffer
	args := []string{"--at=" + early.Format(time.DateTime), "--for=5m"}
	require.NoError(t, runHistory(append(args, "--from="+dir, "-o=answer"), &out))
	require.NoError(t, runHistory(append(args, "--from=copy", "-o=answer"), &copied))
	require.Equal(t, out.String(), copied.String())

	html, err := os.ReadFile(filepath.Join("answer", pageFile))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(html), `<script type="application/json" id="data">`)
	data, _, _ := strings.Cut(rest, "</script>")
	var line struct {
		Start, Step int64
		Steps       int
		Times       []int
		Samples     [][]int64
	}
	require.NoError(t, json.Unmarshal([]byte(data), &line))
	require.Equal(t, early.Truncate(time.Second).UnixMilli(), line.Start)
	require.EqualValues(t, 10_000, line.Step)
	require.Equal(t, 30, line.Steps)
	values := map[int]int64{}
	for i, s := range line.Samples {
		values[line.Times[i]] += s[4]
	}
	require.Len(t, values, 30)
	for step := range 30 {
		require.Equal(t, values[0], values[step])
	}

	file, err := os.Open(filepath.Join("answer", receiver.PprofFile))
	require.NoError(t, err)
	defer file.Close()
	p, err := pprof.Parse(file)
	require.NoError(t, err)
	functions := map[string]int64{}
	for _, s := range p.Sample {
		functions[s.Location[0].Line[0].Function.Name] += s.Value[0]
	}
	require.Equal(t, map[string]int64{"main.hash": 9000, "main.scan": 3000}, functions)

	segments, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	require.NoError(t, err)
	size := uint64(0)
	for _, segment := range segments {
		info, err := os.Stat(segment)
		require.NoError(t, err)
		size += uint64(info.Size()+4095) / 4096 * 4096
	}
	out.Reset()
	require.NoError(t, runHistory([]string{"list", "--from=" + dir}, &out))
	require.Contains(t, out.String(), fmt.Sprintf(", 900 rows, %s in %d segment", humanize.IBytes(size), len(segments)))
}

// Notes tell what is missing or unexpected.
func TestHistoryNotes(t *testing.T) {
	dir := recorded(t, time.Now())
	from := "--from=" + dir
	t.Chdir(t.TempDir())
	ask := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		require.NoError(t, runHistory(args, &out))
		return out.String()
	}
	require.NotContains(t, ask(from, "--since=2h", "-o=answer"), "note:")
	require.NotContains(t, ask(from, "list"), "note:")

	segments, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	require.NoError(t, err)
	data, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(segments[0], data, 0o600))
	require.NoError(t, os.Chtimes(segments[0], time.Time{}, time.Now().Add(-time.Hour)))
	damage := "note: " + filepath.Base(segments[0]) + ": .+: "
	require.Regexp(t, damage+"the rest of the file is left out\n", ask(from, "--since=2h", "-o=answer"))
	require.Regexp(t, damage+"queries leave out the rest of the file\n", ask(from, "list"))

	from = "--from=" + recorded(t, time.Now().Add(2*time.Hour))
	require.Contains(t, ask(from, "--since=1m", "-o=answer"), "note: some data is ahead of this machine's clock, which was set back\n")
}

// Time without records does not count as time of the run. Otherwise, amounts per second would be too small.
func TestHistoryWithGap(t *testing.T) {
	now := time.Now()
	dir := recordedExcept(t, now, now.Add(-40*time.Minute), now.Add(-20*time.Minute))
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	require.NoError(t, runHistory([]string{"--from=" + dir, "--since=2h", "-o=answer"}, &out))
	require.Contains(t, out.String(), "1680.00 seconds (168000 samples) in all, in 2400 s")
	require.Contains(t, out.String(), "note: nothing was recorded from "+shownTime(now.Add(-40*time.Minute))+" to "+shownTime(now.Add(-20*time.Minute)))
	info, _, err := load("answer")
	require.NoError(t, err)
	require.InDelta(t, 2400, info.Seconds, 1)
}

func TestHistoryMistakes(t *testing.T) {
	now := time.Now()
	dir := recorded(t, now)
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "history needs a time: --since 1h"},
		{[]string{"--since=1h", "--at=14:05"}, "--since and --at both set"},
		{[]string{"--at=2pm"}, "--at 2pm: must be a time such as 14:05"},
		{[]string{"--at=14:05", "--for=-1m"}, "--for -1m0s: must be a positive duration"},
		{[]string{"lst"}, `unexpected argument "lst"`},
		{[]string{"--since=1h", "--service=shpo"}, `the history has no service "shpo": did you mean shop?`},
		{[]string{"--at=2020-01-01 12:00"}, "the history has no matching sample from Jan 1 12:00:00 to Jan 1 12:05:00: it covers"},
		{[]string{"--since=1h", "--from=" + filepath.Join(dir, "none")}, "there is no history in"},
	} {
		require.ErrorContains(t, runHistory(append([]string{"--from=" + dir}, test.args...), &bytes.Buffer{}), test.want, "%q", test.args)
	}
}

func TestClockTime(t *testing.T) {
	now := time.Date(2026, 3, 5, 14, 30, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"14:05": "2026-03-05 14:05:00", "23:10:30": "2026-03-04 23:10:30", "2026-02-01 10:00": "2026-02-01 10:00:00", "2026-02-01T10:00:01": "2026-02-01 10:00:01",
	} {
		got, err := clockTime(text, now)
		require.NoError(t, err)
		require.Equal(t, want, got.Format(time.DateTime))
	}
	q, ok, err := parseRange("14:05+5m", now)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "14:05 14:10", fmt.Sprint(q.From.Format("15:04"), " ", q.To.Format("15:04")))
	for _, text := range []string{"before", "profile-shop+5m", "14:05", "14:05+x"} {
		_, ok, _ := parseRange(text, now)
		require.False(t, ok, text)
	}
}

// TestHistoryWithoutReader closes the reader of the output before the command writes to it, as in "profile history | head".
func TestHistoryWithoutReader(t *testing.T) {
	dir, answer := recorded(t, time.Now()), filepath.Join(t.TempDir(), "answer")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "history", "--since=1h", "--from="+dir, "-o="+answer)
	cmd.Env = append(os.Environ(), "TEST_AS_PROFILE=yes")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &said
	err = cmd.Run()
	require.NoError(t, w.Close())
	require.ErrorContains(t, err, "exit status 1", said.String())
	require.Contains(t, said.String(), "broken pipe")
	for _, name := range []string{pageFile, samplesFile, "profile.pb.gz"} {
		require.FileExists(t, filepath.Join(answer, name))
	}
}
