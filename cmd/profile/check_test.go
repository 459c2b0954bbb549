package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// shopRun writes a run of 10,000 samples. main calls price, which has the given number of these samples.
func shopRun(t *testing.T, price int64) string {
	t.Helper()
	frame := func(name string) receiver.Frame {
		return receiver.Frame{Name: name, Type: "native", Mapping: "/srv/shop", Address: 1}
	}
	return inputOf(t, timed(price, frame("price"), frame("main")), timed(10_000-price, frame("a|b`c\n@d"), frame("main")))
}

func inputOf(t *testing.T, samples ...receiver.Sample) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profiles.json")
	exported(t, "otlp-json", file, request(samples...))
	return file
}

func TestCheck(t *testing.T) {
	base, same, slower := shopRun(t, 1000), shopRun(t, 1010), shopRun(t, 1400)
	for _, tt := range []struct {
		name string
		args []string
		want error
		says string
	}{
		{"no rule", []string{base, slower}, nil, "2 changes beyond chance"},
		{"unchanged", []string{base, same, "--fail-on", "share>+0pp"}, nil, "no regression"},
		{"points", []string{base, slower, "--fail-on", "share>+3pp"}, errRegression, "price: own share 10.0% → 14.0%, +4.0 ±0.9 points (+40 %), share>+3pp"},
		{"more points than it is", []string{base, slower, "--fail-on", "share>+5pp"}, nil, "no regression"},
		{"percent", []string{base, slower, "--fail-on", "share > +30%"}, errRegression, "1 regression"},
		{"more percent than it is", []string{base, slower, "--fail-on=share>+50%"}, nil, "no regression"},
		{"total, of which main has all", []string{base, slower, "--fail-on", "total>+3pp"}, errRegression, "price: share with its callees 10.0% → 14.0%"},
		{"of the program", []string{base, slower, "--fail-on", "share>+50%,shop:self>+3pp"}, errRegression, "shop:self>+3pp"},
		{"the share of what remains, as price shrinks", []string{slower, base, "--fail-on", "share>+3pp"}, errRegression, `d": own share 86.0% → 90.0%`},
		{"runs", []string{"--fail-on", "share>+3pp", base, same, base, "--", slower, slower}, errRegression, "after:  2 runs, 20000 samples"},
		{"runs that differ by as much", []string{"--fail-on", "share>+2pp", base, slower, base, "--", slower, base, slower}, nil, "no regression"},
		{"too fine", []string{base, same, "--fail-on", "share>+0.5pp"}, nil, "requires 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := runCheck(tt.args, &out)
			require.ErrorIs(t, err, tt.want)
			require.NotErrorIs(t, err, errCheck)
			require.Contains(t, out.String(), tt.says)
		})
	}
}

// TestDiffShowsWhatCheckShows requires that the table of diff has the shares, intervals and verdicts of check.
func TestDiffShowsWhatCheckShows(t *testing.T) {
	in := func(program string, n int64, name, kind string) receiver.Sample {
		file := map[string]string{"kernel": "[kernel.kallsyms]"}[kind]
		s := timed(n, receiver.Frame{Name: name, Type: kind, Mapping: cmp.Or(file, "/srv/"+program), Address: 1}, receiver.Frame{Name: "main", Type: "native", Mapping: "/srv/" + program})
		s.Attributes = map[string]string{"process.executable.name": program}
		return s
	}
	python := func(program string, n int64, function string) receiver.Sample {
		s := in(program, n, "_PyEval_EvalFrameDefault", "native")
		s.Stack[1] = receiver.Frame{Name: function, Type: "cpython", File: "/srv/shop.py"}
		return s
	}
	wait := func(seconds int64, stack ...receiver.Frame) receiver.Sample {
		return receiver.Sample{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1, Values: []int64{seconds * 1e9}, Stack: stack}
	}
	recv, ask := receiver.Frame{Name: "recv", Type: "native", Mapping: "/usr/lib/libc.so.6"}, receiver.Frame{Name: "ask", Type: "native", Mapping: "/srv/shop"}
	type rows map[string]string
	for name, tt := range map[string]struct {
		before, after []receiver.Sample
		of            string // a row that the table must have
		significant   bool
	}{
		"one program": {
			[]receiver.Sample{in("shop", 1000, "price", "native"), in("shop", 9000, "find", "native")},
			[]receiver.Sample{in("shop", 1400, "price", "native"), in("shop", 8600, "find", "native")}, "price", true,
		},
		"chance": {
			[]receiver.Sample{in("shop", 1000, "price", "native"), in("shop", 9000, "find", "native")},
			[]receiver.Sample{in("shop", 1030, "price", "native"), in("shop", 8970, "find", "native")}, "price", false,
		},
		"the other program grows": {
			[]receiver.Sample{in("shop", 1000, "price", "native"), in("shop", 9000, "find", "native"), in("till", 500, "price", "native"), in("till", 500, "find", "native")},
			[]receiver.Sample{in("shop", 1000, "price", "native"), in("shop", 9000, "find", "native"), in("till", 4800, "price", "native"), in("till", 5200, "find", "native")},
			"price in shop", false,
		},
		"renamed": {
			[]receiver.Sample{in("shop-1.2", 1000, "price", "native"), in("shop-1.2", 9000, "", "native")},
			[]receiver.Sample{in("shop-1.3", 1400, "price", "native"), in("shop-1.3", 8600, "", "native")}, "[shop-1.2 → shop-1.3]", true,
		},
		"kernel": {
			[]receiver.Sample{in("shop", 1000, "page_fault", "kernel"), in("shop", 9000, "find", "native")},
			[]receiver.Sample{in("shop", 2000, "page_fault", "kernel"), in("shop", 8000, "find", "native")}, "page_fault", false,
		},
		"interpreter": {
			[]receiver.Sample{python("python3.11", 1000, "price"), python("python3.11", 9000, "find")},
			[]receiver.Sample{python("python3.12", 1400, "price"), python("python3.12", 8600, "find")}, "price", true,
		},
		"few":   {[]receiver.Sample{in("shop", 3, "price", "native"), in("shop", 40, "find", "native")}, []receiver.Sample{in("shop", 9, "price", "native"), in("shop", 40, "find", "native")}, "price", false},
		"waits": {[]receiver.Sample{wait(4, recv, ask), wait(6, recv)}, []receiver.Sample{wait(5, recv, ask), wait(6, recv)}, "ask", false},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{inputOf(t, tt.before...), inputOf(t, tt.after...), "--rows=100"}
			var out bytes.Buffer
			require.NoError(t, runCheck([]string{"--rows=100", args[0], args[0], "--", args[1], args[1]}, &out))
			require.Contains(t, out.String(), tt.of, "several runs")
			out.Reset()
			require.NoError(t, runCheck(append(args, "--format=json"), &out))
			var checked struct{ Shares []report.Judged }
			require.NoError(t, json.Unmarshal(out.Bytes(), &checked))
			several := slices.ContainsFunc(checked.Shares, func(j report.Judged) bool { return j.Measure == report.Group })
			want, got := rows{}, rows{}
			for _, j := range checked.Shares {
				name, mark := j.Function, " "
				if j.Significant {
					mark = "*"
				}
				if several {
					name += " in " + j.Group
				}
				if j.Measure == report.Self {
					want[name] = fmt.Sprintf("%s %s %s %s", report.Percent(j.Before), report.Percent(j.After), j.Points(), mark)
				}
			}
			out.Reset()
			require.NoError(t, runDiff(append(args, "-o=none"), &out))
			for _, m := range regexp.MustCompile(`(?m)^ *\S+ +\S+ +\S+ +([\d.]+%) → ([\d.]+%) +([+-][\d.]+ ±[\d.]+) (.) +(.+)$`).FindAllStringSubmatch(out.String(), -1) {
				got[m[5]] = strings.Join(m[1:5], " ")
			}
			require.Equal(t, want, got, out.String())
			require.Contains(t, got, tt.of)
			require.Equal(t, tt.significant, strings.HasSuffix(got[tt.of], "*"))
		})
	}
}

// TestMain runs the program itself if a test starts this binary as the program.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS_PROFILE") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestExitCodes requires that the program exits with 1 only for a regression, and with 2 for every misuse and failure of check.
func TestExitCodes(t *testing.T) {
	base, same, slower := shopRun(t, 1000), shopRun(t, 1010), shopRun(t, 1400)
	waits := inputOf(t, receiver.Sample{Type: "off_cpu", Unit: "nanoseconds", PeriodType: "off_cpu", PeriodUnit: "nanoseconds", Period: 1, Values: []int64{3e9}})
	nonsense, empty := filepath.Join(t.TempDir(), "nonsense"), filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(nonsense, []byte("nonsense"), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, tt := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"unchanged", 0, "", []string{"check", base, same, "--fail-on=share>+3pp"}},
		{"a change without a rule", 0, "", []string{"check", base, slower}},
		{"help", 0, "Exit code: 0 no regression", []string{"check", "--help"}},
		{"help of help", 0, "Exit code: 0 no regression", []string{"help", "check"}},
		{"regression", 1, "regression: price", []string{"check", base, slower, "--fail-on=share>+3pp"}},
		{"regression in JSON", 1, "regression: price", []string{"check", base, slower, "--fail-on=share>+3pp", "--format=json"}},
		{"regression in Markdown", 1, "regression: price", []string{"check", base, slower, "--fail-on=share>+3pp", "--format=markdown"}},
		{"no input", 2, "takes two results", []string{"check"}},
		{"one input", 2, "takes two results", []string{"check", base}},
		{"three inputs without --", 2, "takes two results, or several runs", []string{"check", base, same, slower}},
		{"nothing after --", 2, "takes two results", []string{"check", base, same, "--"}},
		{"nothing before --", 2, "takes two results", []string{"check", "--", base, same}},
		{"unknown flag", 2, "did you mean --fail-on?", []string{"check", base, slower, "--fail-of=share>+3pp"}},
		{"unknown format", 2, "must be text, json or markdown: did you mean markdown?", []string{"check", base, slower, "--format=markdow"}},
		{"no rows", 2, "--rows 0", []string{"check", base, slower, "--rows=0"}},
		{"malformed rule", 2, "write a rule such as", []string{"check", base, slower, "--fail-on=share>3"}},
		{"a second rule is malformed", 2, "write a rule such as", []string{"check", base, slower, "--fail-on=share>+3pp,shar>+3pp"}},
		{"unknown program", 2, `have no program "shp": did you mean shop`, []string{"check", base, slower, "--fail-on=share>+3pp,shp:share>+3pp"}},
		{"no file", 2, "no such file", []string{"check", base, base + "x"}},
		{"no profile", 2, "unknown format", []string{"check", base, nonsense}},
		{"no samples", 2, "has no samples", []string{"check", empty, slower}},
		{"empty folder", 2, "there are no profiles", []string{"check", base, t.TempDir()}},
		{"different types", 2, "these cannot be compared", []string{"check", base, waits, "--fail-on=share>+3pp"}},
		{"misspelled command", 2, "did you mean check?", []string{"chek", base, slower}},
		{"full disk", 2, "writing the result", []string{"check", base, slower, "--fail-on=share>+3pp"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), "TEST_AS_PROFILE=yes")
			var said bytes.Buffer
			cmd.Stderr = &said
			if tt.name == "full disk" {
				full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
				require.NoError(t, err)
				defer full.Close()
				cmd.Stdout = full
			}
			_ = cmd.Run() // the exit code is checked
			require.NotNil(t, cmd.ProcessState)
			require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), said.String())
			require.Contains(t, said.String(), tt.says)
		})
	}
}

// TestCheckExample requires that the page's examples are what the commands print.
func TestCheckExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/check.md")
	require.NoError(t, err)
	figures := regexp.MustCompile(`In a simulation, (\d+) of 100 comparisons .* up to (\d+) of 100 failed`).FindSubmatch(page)
	require.NotNil(t, figures)
	require.Contains(t, checkUsage, fmt.Sprintf("%s of 100 comparisons of an unchanged program with 50 functions fails, and up to %s of 100 with ten functions", figures[1], figures[2]))
	t.Chdir(t.TempDir())
	args := []string{"--fail-on", "share>+3pp"}
	for _, run := range []struct {
		name  string
		price int64
	}{{"base-1", 1000}, {"base-2", 1030}, {"base-3", 960}, {"--", 0}, {"new-1", 1410}, {"new-2", 1370}, {"new-3", 1440}} {
		if args = append(args, run.name); run.name == "--" {
			continue
		}
		frame := func(name string) receiver.Frame { return receiver.Frame{Name: name, Type: "go", Mapping: "/srv/shop"} }
		rest := 10_000 - run.price
		require.NoError(t, os.Rename(inputOf(t, timed(run.price, frame("main.price")), timed(rest/3, frame("main.render")), timed(rest-rest/3, frame("main.find"))), run.name))
	}
	var out bytes.Buffer
	require.ErrorIs(t, runCheck(args, &out), errRegression)
	require.Contains(t, string(page), "```text\n"+out.String()+"```\n")
	out.Reset()
	require.NoError(t, runDiff([]string{"base-1", "new-1", "-o", "none"}, &out))
	require.Contains(t, string(page), "```text\n"+out.String()+"```\n")
}

// TestCheckFormats requires that JSON contains all numbers, under the keys that the page lists, and that Markdown shows a workload's names only as code.
func TestCheckFormats(t *testing.T) {
	base, slower := shopRun(t, 1000), shopRun(t, 1400)
	var out bytes.Buffer
	require.ErrorIs(t, runCheck([]string{base, slower, "--fail-on", "share>+3pp", "--format", "json"}, &out), errRegression)
	type side struct {
		Inputs  []string
		Runs    int
		Samples float64
	}
	var got struct {
		Regression bool
		Tested     int
		Before     side
		Shares     []report.Judged
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.True(t, got.Regression)
	require.Equal(t, side{[]string{base}, 1, 10_000}, got.Before)
	require.Equal(t, 2, got.Tested)
	require.Len(t, got.Shares, 2)
	for _, s := range got.Shares {
		require.True(t, s.Significant)
		require.Less(t, s.Low, s.After-s.Before)
		require.Greater(t, s.High, s.After-s.Before)
		require.Less(t, s.P, 1e-6)
		require.InDelta(t, 0.02, s.Detectable, 0.01)
		if s.Function == "price" {
			require.Equal(t, []string{"share>+3pp"}, s.Broken)
		} else {
			require.Empty(t, s.Broken)
		}
	}

	var document map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &document))
	var keys []string
	for key, value := range document {
		if list, ok := value.([]any); ok {
			value = list[0]
		}
		parts, nested := value.(map[string]any)
		for part := range parts {
			keys = append(keys, key+"."+part)
		}
		if !nested {
			keys = append(keys, key)
		}
	}
	page, err := os.ReadFile("../../docs/guides/check.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| key in JSON | meaning |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?`) \\|").FindAllStringSubmatch(table, -1) {
		for _, key := range regexp.MustCompile("`(.+?)`").FindAllStringSubmatch(row[1], -1) {
			listed = append(listed, key[1])
		}
	}
	require.ElementsMatch(t, keys, listed)

	out.Reset()
	require.ErrorIs(t, runCheck([]string{base, slower, "--fail-on", "share>+3pp", "--format", "markdown"}, &out), errRegression)
	require.Contains(t, out.String(), "### Profile check: 1 regression\n")
	require.Contains(t, out.String(), "| `price` | 10.0% | 14.0% | +4.0 ±0.9 |")
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "@d") {
			require.Regexp(t, "^\\| `\"a\\\\\\|b'c\\\\n@d\"` \\| 90\\.0% ", line)
		}
	}
}

// TestCheckOfServices requires that, with several services, a function's share refers to its service, and a service's share to
// the total.
func TestCheckOfServices(t *testing.T) {
	side := func(shop, billing int64) string {
		var samples []receiver.Sample
		for name, n := range map[string]int64{"shop": shop, "billing": billing} {
			s := timed(n/4, receiver.Frame{Name: "price"})
			rest := timed(n-n/4, receiver.Frame{Name: "store"})
			s.Attributes, rest.Attributes = map[string]string{"process.executable.name": name}, map[string]string{"process.executable.name": name}
			samples = append(samples, s, rest)
		}
		return inputOf(t, samples...)
	}
	var out bytes.Buffer
	require.ErrorIs(t, runCheck([]string{side(8000, 2000), side(8000, 4000), "--fail-on", "share>+1pp,service>+5pp"}, &out), errRegression)
	require.Contains(t, out.String(), "1 regression\n  billing: share of all samples 20.0% → 33.3%")
	require.Contains(t, out.String(), "price in billing")
}

// TestRuleOfProgram requires that a rule can name a program whose name has blanks.
func TestRuleOfProgram(t *testing.T) {
	rules, err := parseRules([]string{"Plex Media Server: share > +3 pp"})
	require.NoError(t, err)
	require.Equal(t, "Plex Media Server", rules[0].group)
	_, err = parseRules([]string{" :share>+3pp"})
	require.Error(t, err)
}

// TestCheckOfSeveralPeriods requires that a check includes samples with another period than the first one.
func TestCheckOfSeveralPeriods(t *testing.T) {
	input := func(n int64) string {
		slow, rest := timed(n, receiver.Frame{Name: "slow", Type: "native"}), timed(5000, receiver.Frame{Name: "rest", Type: "native"})
		slow.Period, rest.Period = 20_000_000, 20_000_000
		file := filepath.Join(t.TempDir(), "profiles.json")
		exported(t, "otlp-json", file, request(timed(5000, receiver.Frame{Name: "fast", Type: "native"})), request(slow, rest))
		return file
	}
	require.ErrorIs(t, runCheck([]string{input(1000), input(3000), "--fail-on=share>+3pp"}, io.Discard), errRegression)
}
