// Package report shows people what the samples of profiles say: tables for a terminal, pictures, and
// what has changed between two profiles.
package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// noStack is the function of samples without a stack.
const noStack = "[no stack]"

// Row is a line of Top: one function of one group of samples.
type Row struct {
	Group, Function string
	// Self is what the function itself was seen doing, Total counts what it called, too; both in
	// the samples' unit.
	Self, Total int64
	// SelfShare and TotalShare are fractions of all samples, 0 to 1.
	SelfShare, TotalShare float64
	// Seconds is the time behind Self where the samples measure time, else 0.
	Seconds float64
}

// Options says how Top sums up. The zero value groups by service and counts the leaf of a stack as
// what a function does itself.
type Options struct {
	// Group returns what to keep apart; by default the service.
	Group func(receiver.Sample) string
	// Leaf returns the index of the frame that Self belongs to; by default 0, the leaf.
	Leaf func([]receiver.Frame) int
}

// label names a frame. Addresses without a name in one file share a name: each for itself says nothing.
func label(f receiver.Frame) string {
	if f.Name == "" && f.Address != 0 {
		if f.Mapping != "" {
			return "[" + path.Base(f.Mapping) + "]"
		}
		return "[file not known]"
	}
	return f.Label()
}

// Top returns the n functions with the highest self value, highest first; all of them if n is 0.
// Samples should be of one type (see receiver.ByType), as sums of several mean nothing. A function
// that is in a stack more than once counts once. Addresses without a name count for their file. Samples without a stack count as "[no stack]".
func Top(samples []receiver.Sample, n int, opts Options) []Row {
	if opts.Group == nil {
		opts.Group = func(s receiver.Sample) string { return s.Service }
	}
	if opts.Leaf == nil {
		opts.Leaf = func([]receiver.Frame) int { return 0 }
	}
	type key struct{ group, function string }
	rows := map[key]*Row{}
	row := func(group, function string) *Row {
		k := key{group, function}
		if rows[k] == nil {
			rows[k] = &Row{Group: group, Function: function}
		}
		return rows[k]
	}
	all := int64(0)
	seen := map[string]bool{}
	for _, s := range samples {
		total := s.Total()
		seconds, _ := s.Seconds()
		all += total
		group, stack, leaf := opts.Group(s), s.Stack, noStack
		if len(stack) > 0 {
			stack = stack[opts.Leaf(stack):]
			leaf = label(stack[0])
		}
		r := row(group, leaf)
		r.Self += total
		r.Seconds += seconds
		clear(seen)
		seen[leaf] = true
		r.Total += total
		for _, f := range stack {
			if name := label(f); !seen[name] {
				seen[name] = true
				row(group, name).Total += total
			}
		}
	}
	list := make([]Row, 0, len(rows))
	for r := range maps.Values(rows) {
		if all != 0 {
			r.SelfShare = float64(r.Self) / float64(all)
			r.TotalShare = float64(r.Total) / float64(all)
		}
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total),
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Function, b.Function))
	})
	if n > 0 {
		list = list[:min(n, len(list))]
	}
	return list
}

// Unit returns the heading for amounts of a type: SECONDS where it measures time, else what is counted,
// as in FAULTS.
func Unit(t receiver.Type) string {
	if isTime(t) {
		return "SECONDS"
	}
	name := t.Type
	if t.Unit != "" && t.Unit != "count" {
		name = t.Unit
	}
	name = name[strings.LastIndexAny(name, "_. ")+1:]
	if name == "" {
		return "COUNT"
	}
	return strings.ToUpper(Shown(name, 16))
}

func isTime(t receiver.Type) bool {
	_, yes := receiver.Sample{Unit: t.Unit, PeriodUnit: t.PeriodUnit, Period: t.Period}.Seconds()
	return yes
}

// Column widths of tables, in runes.
const (
	maxGroup    = 32
	maxFunction = 64
)

// WriteTop writes rows of a type as a table for a terminal. Group is the heading of the rows' groups; if
// it is empty they are not shown. Names that could move the cursor are quoted, long ones are cut.
func WriteTop(w io.Writer, t receiver.Type, group string, rows []Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	width := 0
	if group != "" {
		width = len(group)
		for _, r := range rows {
			width = max(width, utf8.RuneCountInString(Shown(r.Group, maxGroup)))
		}
		width += 2
	}
	// The last column is aligned to the left, so the writer gets no tab after it.
	names := func(group, function string) string {
		if width > 0 {
			return fmt.Sprintf("  %-*s%s", width, group, function)
		}
		return "  " + function
	}
	// Waits for locks are often milliseconds in all.
	decimals := 4
	for _, r := range rows {
		if r.Seconds >= 1 {
			decimals = 2
		}
	}
	lines := []string{"SELF\tTOTAL\t" + Unit(t) + "\t" + names(group, "FUNCTION")}
	for _, r := range rows {
		amount := strconv.FormatInt(r.Self, 10)
		if isTime(t) {
			amount = strconv.FormatFloat(r.Seconds, 'f', decimals, 64)
		}
		lines = append(lines, fmt.Sprintf("%.1f%%\t%.1f%%\t%s\t%s",
			100*r.SelfShare, 100*r.TotalShare, amount, names(Shown(r.Group, maxGroup), Shown(r.Function, maxFunction))))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(table, line); err != nil {
			return fmt.Errorf("writing the table: %w", err)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// Shown makes a name from a workload safe for a terminal and at most width runes long.
func Shown(s string, width int) string {
	if s == "" {
		return "-"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		s = strconv.Quote(s)
	}
	if r := []rune(s); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}
