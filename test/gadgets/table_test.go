//go:build e2e

package gadgets

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// line is what the table says of a gadget.
type line struct {
	gadget, origin string
	// missing is why it does not run here.
	missing string
	run     *run
}

// table has the lines of all gadgets that were tried.
type table struct {
	mu    sync.Mutex
	lines []line
}

// add adds a line. Gadgets are tried at the same time.
func (tab *table) add(l line) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	tab.lines = append(tab.lines, l)
}

// write writes the table as Markdown.
func (tab *table) write(t *testing.T) {
	t.Helper()
	slices.SortFunc(tab.lines, func(a, b line) int {
		return cmp.Or(-strings.Compare(a.origin, b.origin), strings.Compare(a.gadget, b.gadget))
	})
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "On Linux %s, for all processes of the machine:\n\n", strings.TrimSpace(string(release)))
	b.WriteString("| gadget | from | rows | read = delivered + dropped | samples | type, unit (period) | with kernel frames | with user frames | without a stack | rules broken |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, l := range tab.lines {
		if l.missing != "" {
			continue
		}
		r, a := l.run, l.run.accounts
		s := share(r.samples)
		fmt.Fprintf(&b, "| %s | %s | %s, %d | %d = %d + %d | %d in %d requests, %d bytes | %s | %s | %s | %s | %d |\n",
			l.gadget, l.origin, a.source, len(r.rows), a.read, a.delivered, a.notExported+a.dropped,
			r.stats.Samples, r.stats.Requests, r.stats.Bytes, types(r.samples),
			s.kernel, s.user, s.none, len(r.findings))
	}
	b.WriteString("\nNot run:\n\n")
	for _, l := range tab.lines {
		if l.missing != "" {
			fmt.Fprintf(&b, "- %s (%s): %s\n", l.gadget, l.origin, l.missing)
		}
	}
	fmt.Fprintf(&b, "\nWhat receivers would refuse or not show, of the same requests in their default form:\n\n| gadget | %s |\n|---|%s\n",
		strings.Join(backends.Backends(), " | "), strings.Repeat("---|", len(backends.Backends())))
	for _, l := range tab.lines {
		if l.missing != "" {
			continue
		}
		fmt.Fprintf(&b, "| %s |", l.gadget)
		for _, name := range backends.Backends() {
			fmt.Fprintf(&b, " %s |", refusals(t, name, l.run))
		}
		b.WriteString("\n")
	}
	file := filepath.Join(outputDir(t), "gadgets.md")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	t.Logf("%s:\n%s", file, b.String())
}

// shares are parts of all samples.
type shares struct{ kernel, user, none string }

func share(samples []receiver.Sample) shares {
	var kernel, user, none int
	for _, s := range samples {
		if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Type == "kernel" }) {
			kernel++
		}
		if slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return f.Type != "kernel" && !slices.Contains(marks, f.Name) }) {
			user++
		}
		if slices.Contains(marks, s.Stack[0].Name) {
			none++
		}
	}
	percent := func(n int) string {
		if len(samples) == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(len(samples)))
	}
	return shares{percent(kernel), percent(user), percent(none)}
}

func types(samples []receiver.Sample) string {
	list, _ := receiver.ByType(samples)
	var words []string
	for _, typ := range list {
		words = append(words, fmt.Sprintf("%s, %s (%d %s %s)", typ.Type, typ.Unit, typ.Period, typ.PeriodType, typ.PeriodUnit))
	}
	return strings.Join(words, "; ")
}

// refusals counts the rules of a receiver that requests break.
func refusals(t *testing.T, backend string, r *run) string {
	t.Helper()
	rules := map[string]bool{}
	n := 0
	for _, req := range r.rcv.Requests() {
		for _, err := range backends.Check(backend, req) {
			n++
			var v *otlpcheck.Violation
			require.ErrorAs(t, err, &v)
			rules[v.Rule.ID] = true
		}
	}
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", n, strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
}
