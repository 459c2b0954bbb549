//go:build e2e

package walk

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// seconds is how long each run samples.
const seconds = 10

// account holds the work of a shop's functions, by question.
type account map[string]map[string]float64

// entry is an account with the time when it was requested.
type entry struct {
	at time.Time
	account
}

// askEvery is the interval between requests for a shop's account.
const askEvery = 200 * time.Millisecond

// shop is a running service.
type shop struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func open(t *testing.T, args ...string) *shop {
	t.Helper()
	s := &shop{cmd: exec.CommandContext(t.Context(), args[0], args[1:]...)}
	s.cmd.Stderr = os.Stderr
	// The scheduler first divides CPU time between sessions.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.in, s.out = in, bufio.NewScanner(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = in.Close() // the shop ends with its input
		_ = s.cmd.Wait()
	})
	return s
}

// watch asks for the shop's account until done is closed.
func (s *shop) watch(done <-chan struct{}) (entries []entry, err error) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for ; ; <-tick.C {
		if _, err := io.WriteString(s.in, "\n"); err != nil {
			return nil, err
		}
		if !s.out.Scan() {
			return nil, errors.New("the shop has closed")
		}
		e := entry{time.Now(), account{}}
		if err := json.Unmarshal(s.out.Bytes(), &e.account); err != nil {
			return nil, err
		}
		entries = append(entries, e)
		select {
		case <-done:
			return entries, nil
		default:
		}
	}
}

// amounts returns the work of each function up to a time. It interpolates between two accounts.
func amounts(entries []entry, question string, until time.Time) map[string]float64 {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.at.After(until) })
	switch i {
	case -1:
		return entries[len(entries)-1].account[question]
	case 0:
		return entries[0].account[question]
	}
	before, after, did := entries[i-1], entries[i], map[string]float64{}
	part := until.Sub(before.at).Seconds() / after.at.Sub(before.at).Seconds()
	for function, amount := range after.account[question] {
		did[function] = before.account[question][function] + part*(amount-before.account[question][function])
	}
	return did
}

// look is a run of the command profile, with the shop's account of the same time.
type look struct {
	said string
	err  error
	// took is how long the command ran, including the gadget's start and end.
	took time.Duration
	// truth is the shop's work per second during the sampling, by function.
	truth   map[string]float64
	samples []receiver.Sample
}

var sampling = regexp.MustCompile(`… (\d+) of \d+ s`)

// profile profiles a shop, and writes the result to dir.
func (s *shop) profile(t *testing.T, dir, question string, flags ...string) look {
	t.Helper()
	args := append([]string{"--pid", fmt.Sprint(s.cmd.Process.Pid), "--gadget", question, "--seconds", fmt.Sprint(seconds), "-o", dir}, flags...)
	cmd := igrun.Command(t.Context(), igtest.Built(t, igtest.Bin, "profile"), args...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	var entries []entry
	done, watched := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		entries, err = s.watch(done)
		watched <- err
	}()
	l := look{truth: map[string]float64{}}
	began := time.Now()
	require.NoError(t, cmd.Start())
	var from time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		l.said += lines.Text() + "\n"
		if at := sampling.FindStringSubmatch(lines.Text()); at != nil && from.IsZero() {
			gone, err := strconv.Atoi(at[1])
			require.NoError(t, err)
			from = time.Now().Add(-time.Duration(gone) * time.Second)
		}
	}
	l.err = cmd.Wait()
	l.took = time.Since(began)
	close(done)
	require.NoError(t, <-watched)
	l.said += stderr.String()
	t.Logf("%s", l.said)
	if text, err := os.ReadFile(filepath.Join(dir, "run.json")); err == nil { // without samples, the file does not exist
		run := struct{ Started time.Time }{}
		require.NoError(t, json.Unmarshal(text, &run))
		from = run.Started
	}
	require.False(t, from.IsZero(), "profile has not printed its progress")
	before := amounts(entries, question, from)
	for function, amount := range amounts(entries, question, from.Add(seconds*time.Second)) {
		if amount -= before[function]; amount > 0 {
			l.truth[function] = amount / seconds
		}
	}
	written, err := os.Open(filepath.Join(dir, "profiles.jsonl"))
	if os.IsNotExist(err) {
		return l
	}
	require.NoError(t, err)
	defer written.Close()
	requests, err := receiver.ReadJSONLines(written)
	require.NoError(t, err)
	l.samples = receiver.ResolveAll(receiver.Newest(requests))
	return l
}

// measured maps each question to its sample type, and says whether the type's table shows the program's own functions.
var measured = map[string]struct {
	typ string
	own bool
}{"cpu": {"samples", false}, "offcpu": {"off_cpu", true}, "lock": {"delay", true}, "alloc": {"alloc_space", true}, "pagefault": {"page_faults", true}}

// answer returns each function's amount per second according to profile, in the units of profile's table. It also returns the
// table's first row.
func (l look) answer(question string, functions []string) (amounts map[string]float64, first string) {
	samples := slices.DeleteFunc(slices.Clone(report.Fold(l.samples)), func(s receiver.Sample) bool { return s.Type != measured[question].typ })
	amounts = map[string]float64{}
	for _, r := range report.Top(samples, 0, report.Options{Own: measured[question].own, Group: func(receiver.Sample) string { return "" }}) {
		if first == "" {
			first = fmt.Sprintf("%s %.0f %%", r.Function, 100*r.SelfShare)
		}
		for _, function := range functions {
			if loads.Is(r.Function, function) {
				amounts[function] += float64(r.Total) / seconds
			}
		}
	}
	if len(samples) > 0 {
		scale := 1.0
		switch question {
		case "cpu":
			scale = float64(samples[0].Period) / 1e9
		case "offcpu", "lock":
			scale = 1e-9
		}
		for function := range amounts {
			amounts[function] *= scale
		}
	}
	return amounts, first
}

// step is one question to one shop.
type step struct {
	question string
	flags    []string
	// only lists the functions that the gadget can see. If it is empty, the gadget sees all functions. note describes what the
	// gadget cannot see, in profile's words.
	only []string
	note string
	// empty says that the gadget cannot see any of this work.
	empty bool
	// picture says that the documentation shows this run's flame graph.
	picture bool
}

// steps returns the five questions. The given steps replace some of them for a language.
func steps(other ...step) []step {
	list := []step{{question: "cpu"}, {question: "offcpu"}, {question: "lock"}, {question: "alloc"}, {question: "pagefault"}}
	for _, s := range other {
		list[slices.IndexFunc(list, func(o step) bool { return o.question == s.question })] = s
	}
	return list
}

// TestWalk asks each shop each question, and compares the answers with the shop's account. It writes the page that WALK_DOC names.
func TestWalk(t *testing.T) {
	igtest.NeedRoot(t)
	dir := t.TempDir()
	source := func(name string) string {
		path, err := filepath.Abs(filepath.Join("services", name))
		require.NoError(t, err)
		return path
	}
	igtest.Output(t, "g++", "-std=c++20", "-O2", "-Wall", "-Werror", "-pthread", "-o", filepath.Join(dir, "shop-cpp"), source("shop.cpp"))
	igtest.Output(t, "javac", "-d", dir, source("Shop.java"))
	igtest.Output(t, "go", "build", "-o", filepath.Join(dir, "shop-go"), source("shop"))
	rows := map[string]string{}
	shops := []struct {
		language string
		args     []string
		steps    []step
	}{
		{"C++", []string{filepath.Join(dir, "shop-cpp")}, steps(step{question: "lock", picture: true})},
		{"Go", []string{filepath.Join(dir, "shop-go")}, steps(
			step{question: "cpu", picture: true},
			step{question: "offcpu", note: "Go parks goroutines"},
			step{question: "lock", note: "Go parks goroutines", empty: true},
			step{question: "alloc", note: "Go's objects come from Go's own runtime", empty: true})},
		{"Java", []string{"java", "-cp", dir, "Shop"}, steps(
			step{question: "pagefault", picture: true},
			step{question: "lock", note: "Java parks threads", empty: true},
			step{question: "alloc", note: "objects of the Java heap are not shown", only: []string{"loadCatalogue", "loadPrices"}})},
		{"Node.js", []string{"node", source("shop.js")}, steps(
			step{question: "lock", note: "JavaScript has no locks", empty: true},
			// The unwinder finds no callers of V8's constructors, for example in Buffer.alloc.
			step{question: "alloc", note: "objects of V8's heap are not shown", only: []string{"keepBasket", "keepReceipt"}, picture: true})},
		{"Python", []string{"python3", source("shop.py")}, steps(
			step{question: "offcpu", picture: true},
			// Its callers also wait for the GIL.
			step{question: "lock", flags: []string{"--", "--all-futex"}, note: "Python's GIL"},
			step{question: "alloc", note: "Python takes objects of up to 512 bytes"})},
	}
	for _, of := range shops {
		t.Run(of.language, func(t *testing.T) {
			s := open(t, of.args...)
			for _, step := range of.steps {
				t.Run(step.question, func(t *testing.T) {
					dir := filepath.Join(t.TempDir(), "result")
					l := s.profile(t, dir, step.question, step.flags...)
					if step.picture {
						picture(t, of.language, filepath.Join(dir, "flamegraph.html"))
					}
					command := strings.Join(append([]string{"--gadget", step.question}, step.flags...), " ")
					rows[of.language] += fmt.Sprintf("| %s | `%s` | %.0f | %s |\n", of.language, command, l.took.Seconds(), step.check(t, l))
				})
			}
		})
	}
	writePage(t, rows)
}

// check compares a run with the truth, and returns the cells of the page's table for it.
func (s step) check(t *testing.T, l look) string {
	t.Helper()
	require.Contains(t, l.said, s.note)
	if s.empty {
		return "empty, as expected: " + s.note + " … | " + cells(l.truth, s.question)
	}
	require.NoError(t, l.err)
	truth := l.truth
	if len(s.only) > 0 {
		maps.DeleteFunc(truth, func(function string, _ float64) bool { return !slices.Contains(s.only, function) })
	}
	answer, first := l.answer(s.question, slices.Collect(maps.Keys(truth)))
	samples := 0.0
	for _, sample := range l.samples {
		samples += float64(sample.Total())
	}
	// Sampled values have a random error. The account includes a function's amount only after the function returns.
	chance := 0.0
	if s.question == "cpu" {
		chance = 5 / math.Sqrt(samples)
	}
	require.InEpsilon(t, sum(truth), sum(answer), 0.2+chance, "%v, and not %v", answer, truth)
	for function, share := range shares(truth) {
		require.InDelta(t, share, shares(answer)[function], 0.1+chance*math.Sqrt(share*(1-share)), "%s: %v, and not %v", function, answer, truth)
	}
	return cells(answer, s.question) + "; the table begins with " + strings.NewReplacer("|", "\\|", "<", "&lt;", ">", "&gt;").Replace(first) + " | " + cells(truth, s.question)
}

func sum(amounts map[string]float64) (all float64) {
	for _, amount := range amounts {
		all += amount
	}
	return all
}

func shares(amounts map[string]float64) map[string]float64 {
	of, all := map[string]float64{}, sum(amounts)
	for function, amount := range amounts {
		of[function] = amount / all
	}
	return of
}

// cells formats the sum, and the functions with at least 2 % of it.
func cells(amounts map[string]float64, question string) string {
	if len(amounts) == 0 {
		return "nothing"
	}
	var words []string
	of := shares(amounts)
	for _, function := range slices.SortedFunc(maps.Keys(of), func(a, b string) int { return int(math.Copysign(1, of[b]-of[a])) }) {
		if of[function] >= 0.02 {
			words = append(words, fmt.Sprintf("%s %.0f %%", function, 100*of[function]))
		}
	}
	unit, all := "s", sum(amounts)
	switch question {
	case "alloc":
		unit, all = "MB", all/1e6
	case "pagefault":
		unit, all = "thousand faults", all/1e3
	}
	return fmt.Sprintf("%s; %.3g %s", strings.Join(words, ", "), all, unit)
}

// picture takes a picture of a flame graph for the page that WALK_DOC names.
func picture(t *testing.T, language, page string) {
	t.Helper()
	doc := os.Getenv("WALK_DOC")
	if doc == "" {
		return
	}
	file := filepath.Join(filepath.Dir(doc), "walk-"+strings.NewReplacer("+", "p", ".", "").Replace(strings.ToLower(language))+".png")
	igtest.Output(t, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,640", "--screenshot="+file, "file://"+page)
}

// writePage writes the table into the page that WALK_DOC names. It keeps the rows of languages that are not part of this run.
func writePage(t *testing.T, rows map[string]string) {
	t.Helper()
	page := os.Getenv("WALK_DOC")
	if page == "" || t.Failed() {
		return
	}
	asked := map[string]bool{}
	for language := range rows {
		asked[language] = true
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	table := "| language | flags | seconds | answer | truth |\n|---|---|---|---|---|\n"
	for _, row := range regexp.MustCompile("(?m)^\\| (\\S+) \\| `--gadget .*\n").FindAllStringSubmatch(string(text), -1) {
		if !asked[row[1]] {
			rows[row[1]] += row[0]
		}
	}
	for _, language := range slices.Sorted(maps.Keys(rows)) {
		table += rows[language]
	}
	igtest.WriteBetween(t, page, "<!-- begin table -->\n", "<!-- end table -->", "\n"+table+"\n")
}
