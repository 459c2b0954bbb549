package receiver

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// Row is a line of Top: one function of one service.
type Row struct {
	Service, Function string
	// Self is what the function itself was seen doing, Total counts what it called, too; both in
	// the samples' unit.
	Self, Total int64
	// SelfShare and TotalShare are fractions of all samples, 0 to 1.
	SelfShare, TotalShare float64
	// Seconds is the time behind Self where the samples measure time, else 0.
	Seconds float64
}

// Top returns the n functions with the highest self value, highest first; all of them if n is 0.
// Samples should be of one type (see ByType), as sums of several mean nothing. A function that is
// in a stack more than once counts once. Samples without a stack count as "[no stack]".
func Top(samples []Sample, n int) []Row {
	type key struct{ service, function string }
	rows := map[key]*Row{}
	row := func(service, function string) *Row {
		k := key{service, function}
		if rows[k] == nil {
			rows[k] = &Row{Service: service, Function: function}
		}
		return rows[k]
	}
	all := int64(0)
	seen := map[string]bool{}
	for _, s := range samples {
		total := s.Total()
		seconds, _ := s.Seconds()
		all += total
		leaf := "[no stack]"
		if len(s.Stack) > 0 {
			leaf = s.Stack[0].Label()
		}
		r := row(s.Service, leaf)
		r.Self += total
		r.Seconds += seconds
		clear(seen)
		seen[leaf] = true
		r.Total += total
		for _, f := range s.Stack {
			if name := f.Label(); !seen[name] {
				seen[name] = true
				row(s.Service, name).Total += total
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
			cmp.Compare(a.Service, b.Service), cmp.Compare(a.Function, b.Function))
	})
	if n > 0 {
		list = list[:min(n, len(list))]
	}
	return list
}

// Column widths of WriteTop, in runes.
const (
	maxService  = 32
	maxFunction = 64
)

// WriteTop writes rows as a table for a terminal. Names that could move the cursor are quoted, long
// ones are cut.
func WriteTop(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	lines := make([]string, 1, 1+len(rows))
	lines[0] = "SELF\tTOTAL\tSECONDS\t  SERVICE"
	width := 0
	for _, r := range rows {
		width = max(width, utf8.RuneCountInString(shown(r.Service, maxService)))
	}
	lines[0] += strings.Repeat(" ", max(0, width-len("SERVICE"))) + "  FUNCTION"
	for _, r := range rows {
		seconds := "-"
		if r.Seconds != 0 {
			seconds = strconv.FormatFloat(r.Seconds, 'f', 2, 64)
		}
		service := shown(r.Service, maxService)
		service += strings.Repeat(" ", max(0, max(width, len("SERVICE"))-utf8.RuneCountInString(service)))
		lines = append(lines, fmt.Sprintf("%.1f%%\t%.1f%%\t%s\t  %s  %s",
			100*r.SelfShare, 100*r.TotalShare, seconds, service, shown(r.Function, maxFunction)))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(t, line); err != nil {
			return fmt.Errorf("writing the table: %w", err)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// shown makes a name from a workload safe for a terminal and at most width runes long.
func shown(s string, width int) string {
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
