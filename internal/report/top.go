// Package report presents samples of profiles to people: tables for a terminal, pictures, and differences of two profiles.
package report

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
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

// Marks lists the names of frames that represent missing parts of stacks, or unnamed code, with their meanings.
var Marks = [][2]string{
	{noStack, "no stack was recorded"},
	{"[lost user stack]", "only the kernel's part of the stack was recorded"},
	{"[truncated]", "the stack is deeper than the limit, or could not be unwound further: its outer callers are missing"},
	{"[incomplete]", "the stack does not reach a known entry point: its outer callers are missing"},
	{"[generated code]", "machine code that a runtime has compiled in memory; a perf map would name it"},
	{"[unknown]", "neither the function nor its address is known"},
	{"[file not known]", "no file was found for the address"},
}

// Missing reports whether a function's name represents a missing part of a stack.
func Missing(name string) bool {
	return slices.ContainsFunc(Marks, func(mark [2]string) bool { return mark[0] == name && name != "[generated code]" })
}

// With Options.Own, NotOwn represents stacks that contain none of the program's own functions. These are stacks of idle runtime
// threads, and stacks whose callers are missing.
const NotOwn = "[no function of its own]"

// Row is a line of Top: one function of one group of samples.
type Row struct {
	Group, Function string
	// Self is the function's own value. With Options.Own, it is the value of calls from the function. Total includes its
	// callees. Both are in the samples' unit.
	Self, Total int64
	// SelfShare and TotalShare are fractions of all samples, 0 to 1.
	SelfShare, TotalShare float64
	// Seconds is the time behind Self where the samples measure time, else 0.
	Seconds float64
	// Error is the random error of SelfShare with Confidence if a timer has sampled, else 0.
	Error float64
	// File and Line are the place with most of Self, or of Total if Self is 0. They are empty and 0 if no place is known.
	File string
	Line int64
	// Nameless reports that Function represents a file's unnamed functions.
	Nameless bool
	// Ends lists the most frequent innermost functions of the stacks in NotOwn, as Own finds them.
	Ends []string
}

// Options configures Top. The zero value groups by service and counts a stack's leaf as the function itself.
type Options struct {
	// Group returns the group of a sample. The default is the service.
	Group func(receiver.Sample) string
	// Own counts Self for the frame that the function Own returns instead of the leaf. It leaves out all other functions, unless
	// there are no own functions.
	Own bool
	// Width is the terminal's width; 0 means unlimited.
	Width int

	// ownAlone is set if Own was chosen and a stack contains one of the program's own functions.
	ownAlone bool
}

// over decides for all samples of a table whether they contain any of the program's own functions.
func (o Options) over(sets ...[]receiver.Sample) Options {
	o.ownAlone = o.ownAlone || o.Own && slices.ContainsFunc(sets, HasOwn)
	return o
}

func (o Options) grouped() Options {
	if o.Group == nil {
		o.Group = func(s receiver.Sample) string { return s.Service }
	}
	return o
}

// leaf returns the function that a stack counts for, and its frame. If it is NotOwn, end is the stack's innermost function.
func (o Options) leaf(stack []receiver.Frame) (name string, at receiver.Frame, end string) {
	if len(stack) == 0 {
		return noStack, at, ""
	}
	i, own := 0, true
	if o.Own {
		i, own = Own(stack)
	}
	if o.ownAlone && !own {
		return NotOwn, at, label(stack[i])
	}
	return label(stack[i]), stack[i], ""
}

// functions yields the functions of a stack that have a total, each once with its innermost frame. The first is the result of leaf.
func (o Options) functions(stack []receiver.Frame, leaf string, at receiver.Frame) iter.Seq2[string, receiver.Frame] {
	return func(yield func(string, receiver.Frame) bool) {
		var own []bool
		if o.ownAlone {
			own = ownFrames(stack)
		}
		more, seen := yield(leaf, at), map[string]bool{leaf: true}
		for i, f := range stack {
			if name := label(f); more && !seen[name] && (own == nil || own[i]) {
				more, seen[name] = yield(name, f), true
			}
		}
	}
}

// label names a frame. Unnamed addresses in one file share a name, because single addresses are not helpful.
func label(f receiver.Frame) string {
	if f.Name == "" && f.Address != 0 {
		if f.Mapping != "" {
			return "[" + path.Base(f.Mapping) + "]"
		}
		return "[file not known]"
	}
	return f.Label()
}

// nameless reports whether a label represents a frame's file.
func nameless(f receiver.Frame) bool { return f.Name == "" && f.Address != 0 && f.Mapping != "" }

// stackKey identifies a stack of a group.
type stackKey struct {
	group string
	stack receiver.Stack
}

type stackSum struct {
	group   string
	stack   []receiver.Frame
	total   int64
	seconds float64
}

// Top returns the n functions with the highest self value, highest first. If n is 0, it returns all. NotOwn comes after the
// program's own functions, and can exceed n by one. A function counts once per stack. Addresses without a name count for their
// file. Samples without a stack count as "[no stack]". Samples should be of one type (see receiver.ByType), because sums over
// several types mean nothing.
func Top(samples []receiver.Sample, n int, opts Options) []Row {
	opts = opts.grouped().over(samples)
	type key struct{ group, function string }
	type place struct {
		row  *Row
		self bool
		file string
		line int64
	}
	rows, places := map[key]*Row{}, map[place]int64{}
	row := func(group, function string) *Row {
		k := key{group, function}
		if rows[k] == nil {
			rows[k] = &Row{Group: group, Function: function}
		}
		return rows[k]
	}
	all, sampled := int64(0), len(samples) > 0
	ends := map[*Row]map[string]int64{}
	sums, order := map[stackKey]*stackSum{}, []*stackSum(nil)
	for _, s := range samples {
		sampled = sampled && isSampled(receiver.TypeOf(s))
		k := stackKey{opts.Group(s), receiver.StackOf(s.Stack)}
		sum := sums[k]
		if sum == nil {
			sum = &stackSum{group: k.group, stack: s.Stack}
			sums[k], order = sum, append(order, sum)
		}
		seconds, _ := s.Seconds()
		sum.total, sum.seconds = sum.total+s.Total(), sum.seconds+seconds
	}
	for _, s := range order {
		group, stack, total := s.group, s.stack, s.total
		all += total
		leaf, at, end := opts.leaf(stack)
		r := row(group, leaf)
		r.Self += total
		if end != "" {
			if ends[r] == nil {
				ends[r] = map[string]int64{}
			}
			ends[r][end] += total
		}
		r.Seconds += s.seconds
		r.Nameless = r.Nameless || end == "" && nameless(at)
		for name, f := range opts.functions(stack, leaf, at) {
			r := row(group, name)
			r.Total += total
			places[place{r, name == leaf, f.File, f.Line}] += total
		}
	}
	most := map[*Row]int64{}
	for p, n := range places {
		// If several lines have the highest value, the choice is always the same.
		if sourceFile(p.file) && p.self == (p.row.Self > 0) && (n > most[p.row] || n == most[p.row] && cmp.Or(cmp.Compare(p.file, p.row.File), cmp.Compare(p.line, p.row.Line)) < 0) {
			most[p.row], p.row.File, p.row.Line = n, p.file, p.line
		}
	}
	list := make([]*Row, 0, len(rows))
	for r := range maps.Values(rows) {
		if all != 0 {
			r.SelfShare, r.TotalShare = float64(r.Self)/float64(all), float64(r.Total)/float64(all)
		}
		if sampled {
			r.Error = chance(r.Self, all)
		}
		r.Ends = slices.SortedFunc(maps.Keys(ends[r]), func(a, b string) int {
			return cmp.Or(cmp.Compare(ends[r][b], ends[r][a]), cmp.Compare(a, b))
		})
		r.Ends = r.Ends[:min(len(r.Ends), 3)]
		list = append(list, r)
	}
	rank := func(r *Row) int {
		switch {
		case r.Self == 0:
			return 2
		case r.Function == NotOwn:
			return 1
		}
		return 0
	}
	slices.SortFunc(list, func(a, b *Row) int {
		if c := cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total)); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Function, b.Function))
	})
	if n > 0 && n < len(list) {
		rest := slices.DeleteFunc(slices.Clone(list[n:]), func(r *Row) bool { return r.Function != NotOwn || r.Self < list[n-1].Self })
		list = append(list[:n], rest...)
	}
	if n > 0 {
		list = slices.DeleteFunc(list, func(r *Row) bool { return r.SelfShare < visible && r.TotalShare < visible })
	}
	top := make([]Row, len(list))
	for i, r := range list {
		top[i] = *r
	}
	return top
}

// visible is the smallest share that does not round to zero.
const visible = 0.0005

// isSampled reports whether a type counts hits of a timer.
func isSampled(t receiver.Type) bool { return t.Unit == "count" && t.PeriodUnit == "nanoseconds" }

// sourceFile reports whether a name is a file name, and not a runtime's placeholder like <frozen>.
func sourceFile(name string) bool { return name != "" && !strings.HasPrefix(name, "<") }

// Unit returns the heading for amounts of a type: SECONDS for time, else the counted thing, as in FAULTS.
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
	maxPlace    = 32
	leastLine   = 72 // lines are not cut to less than this
)

// WriteTop writes rows of a type as a table for a terminal. Group is the heading of the rows' groups. If it is empty, the
// groups are not shown. The options are the same as for Top. Names that could move the cursor are quoted, long ones are cut.
func WriteTop(w io.Writer, t receiver.Type, group string, rows []Row, opts Options) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
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
	fmt.Fprintln(table, heading(t, opts)+"\t"+names(group, "FUNCTION")) // Flush returns the errors
	decimals := digits(rows)
	for _, r := range rows {
		cells := []string{share(r.SelfShare, r.Self), Percent(r.TotalShare), strconv.FormatInt(r.Self, 10)}
		if r.Error > 0 {
			cells[0] += fmt.Sprintf(" ±%.0f", math.Ceil(100*r.Error))
		} else if isSampled(t) {
			cells[0] += "   "
		}
		if isTime(t) {
			cells[2] = strconv.FormatFloat(r.Seconds, 'f', decimals, 64)
		}
		if isSampled(t) {
			cells = append(cells, strconv.FormatInt(r.Self, 10))
		}
		if r.Self == 0 {
			for i := range cells {
				if i != 1 {
					cells[i] = "-"
				}
			}
		}
		fmt.Fprintln(table, strings.Join(cells, "\t")+"\t"+names(Shown(r.Group, maxGroup), Shown(r.Function, maxFunction)))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	if _, err := io.WriteString(w, withPlaces(text.String(), rows, opts.Width)); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// heading returns the headings of the numbers.
func heading(t receiver.Type, opts Options) string {
	self := "SELF"
	if opts.Own {
		self = "OWN"
	}
	if isSampled(t) {
		return self + "   \tTOTAL\tSECONDS\tSAMPLES"
	}
	return self + "\tTOTAL\t" + Unit(t)
}

// withPlaces adds the file and line of each row to a table, below its heading, if there are any and there is room. Long names
// are cut to make room, or to end with the terminal's line.
func withPlaces(table string, rows []Row, width int) string {
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	longest, widest, some := 0, 0, false
	places := make([]string, len(lines))
	for i, r := range rows {
		if r.File != "" {
			places[i+1] = Shown(path.Base(r.File), maxPlace)
			if r.Line > 0 {
				places[i+1] += ":" + strconv.FormatInt(r.Line, 10)
			}
			some = true
			widest = max(widest, utf8.RuneCountInString(places[i+1]))
		}
	}
	for _, line := range lines {
		longest = max(longest, utf8.RuneCountInString(line))
	}
	places[0] = "FILE"
	if room := width - 2 - widest; !some || width > 0 && longest > room && room < leastLine {
		clear(places)
	} else if width > 0 {
		longest = min(longest, room)
	}
	var out strings.Builder
	for i, line := range lines {
		switch {
		case places[i] != "":
			line = Shown(line, longest)
			line += strings.Repeat(" ", longest-utf8.RuneCountInString(line)+2) + places[i]
		case width > 0:
			line = Shown(line, max(width, leastLine))
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// Percent writes a share from 0 to 1 as a percentage.
func Percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// share returns a share in percent that is zero only if the amount is zero.
func share(share float64, amount int64) string {
	if amount > 0 && share < visible {
		return "<0.1%"
	}
	return Percent(share)
}

// digits returns the number of decimals of seconds. It is enough for the smallest amount, because waits for locks often add up to
// milliseconds.
func digits(rows []Row) int {
	if slices.ContainsFunc(rows, func(r Row) bool { return r.Seconds > 0 && r.Seconds < 0.005 }) {
		return 4
	}
	return 2
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
