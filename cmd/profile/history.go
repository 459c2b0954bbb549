package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"golang.org/x/sync/errgroup"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

const historyUsage = `profile history shows what this machine did at an earlier time. The package's service records this, and so does an exporter
with "preset: history".

  profile history --since 1h
  profile history --at 14:05 --for 5m --service checkout
  profile history list                                  # recorded services, gadgets and times
  profile diff 13:05+5m 14:05+5m --service checkout     # what was different?

`

// past selects data from a history.
type past struct{ folder, service, gadget string }

func (p *past) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.folder, "from", config.HistoryFolder, "`folder` of the history")
	flags.StringVar(&p.service, "service", "", "show only the service of this `name`")
	flags.StringVar(&p.gadget, "gadget", "", "show only the data of this gadget: alloc, cpu, lock, offcpu, pagefault, or the name of an `image`")
}

// runHistory prints the samples, or the content, of a history.
func runHistory(args []string, out io.Writer) error {
	flags := newFlags("history", historyUsage)
	var p past
	p.addFlags(flags)
	since := flags.Duration("since", 0, "show the last part of the history, such as 1h")
	at := flags.String("at", "", "start at this `time`: 14:05, or \"2026-11-24 14:05\"")
	length := flags.Duration("for", 5*time.Minute, "with --at, the length of the time range")
	o := options{}
	flags.StringVarP(&o.dir, "output", "o", "", "`folder` to write into; a new one by default")
	flags.IntVar(&o.rows, "rows", 15, "number of functions to list")
	addInterpreters(flags, &o.interpreters)
	if err := parse(flags, args); err != nil {
		return err
	}
	now := time.Now()
	q := history.Query{From: now.Add(-*since)} // without an end, to include later data if the clock was set back
	switch {
	case flags.NArg() == 1 && flags.Arg(0) == "list":
		return p.list(out)
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: history takes flags, or list", flags.Arg(0))
	case *at != "" && *since != 0:
		return errors.New("--since and --at both set the start: use only one of them")
	case *at == "" && *since <= 0:
		return errors.New("history needs a time: --since 1h, or --at 14:05 --for 5m; \"profile history list\" shows the recorded times")
	case *length <= 0:
		return fmt.Errorf("--for %s: must be a positive duration, such as 5m", *length)
	case *at != "":
		from, err := clockTime(*at, now)
		if err != nil {
			return fmt.Errorf("--at %w", err)
		}
		q.From, q.To = from, from.Add(*length)
	}
	signal.Ignore(syscall.SIGPIPE) // as in runProfile
	info, answer, err := p.read(q)
	if err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = newDir("history", now); err != nil {
			return err
		}
	}
	return p.report(out, o, info, answer)
}

// timeLayouts lists the accepted formats of times. A time without a day is the latest such time in the past.
var timeLayouts = []string{"15:04", "15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339}

func clockTime(text string, now time.Time) (time.Time, error) {
	for _, layout := range timeLayouts {
		t, err := time.ParseInLocation(layout, text, now.Location())
		if err == nil && t.Year() == 0 { // without a day
			y, m, d := now.Date()
			if t = time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location()); t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
		}
		if err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: must be a time such as 14:05, 14:05:30 or \"2026-11-24 14:05\"", text)
}

// rangeText matches a range for profile diff.
var rangeText = regexp.MustCompile(`^([0-9][0-9TZ: -]*)\+([0-9hms.]+)$`)

// parseRange parses a range such as 14:05+5m. It returns false if the text is not a range.
func parseRange(text string, now time.Time) (q history.Query, ok bool, err error) {
	m := rangeText.FindStringSubmatch(text)
	if m == nil || exists(text) {
		return q, false, nil
	}
	length, err := time.ParseDuration(m[2])
	if err != nil || length <= 0 {
		return q, false, nil
	}
	q.From, err = clockTime(m[1], now)
	q.To = q.From.Add(length)
	return q, true, err
}

// selected returns the query with the chosen service and gadget.
func (p *past) selected(q history.Query) history.Query {
	q.Service, q.Gadget = p.service, cmp.Or(ownGadgets[p.gadget], p.gadget)
	return q
}

// read queries the history.
func (p *past) read(q history.Query) (runInfo, history.Answer, error) {
	info := runInfo{Target: cmp.Or(p.service, "this machine")}
	a, err := history.Read(p.folder, p.selected(q))
	if err != nil {
		return info, a, p.explain(err)
	}
	if len(a.Summary.Sums) == 0 {
		return info, a, p.nothing(q)
	}
	var gadgets []string
	for _, s := range a.Summary.Sums {
		gadgets = append(gadgets, history.GadgetName(s.Gadget))
	}
	slices.Sort(gadgets)
	info.Gadget, info.Started = strings.Join(slices.Compact(gadgets), ", "), a.Summary.Start
	recorded := a.Summary.End.Sub(a.Summary.Start)
	for _, gap := range a.Gaps {
		recorded -= gap.To.Sub(gap.From)
	}
	info.Seconds = max(recorded, time.Second).Seconds()
	return info, a, nil
}

func (p *past) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("reading the history: %w: only its writer, usually root, can read it: use sudo", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no history in %s: start the service (systemctl enable --now ig-otel-profiles), or set an exporter's folder with --from", p.folder)
	}
	return fmt.Errorf("reading the history: %w", err)
}

// total returns the content of a history, by segment and in total. An empty history is an error.
func (p *past) total() (list []history.Summary, all history.Summary, err error) {
	if list, err = history.List(p.folder); err != nil {
		return nil, all, p.explain(err)
	}
	if all = history.Total(list); all.Records == 0 {
		err = fmt.Errorf("the history in %s has no samples yet", p.folder)
	}
	return list, all, err
}

// nothing returns an error that describes the available data, if the requested data is missing.
func (p *past) nothing(q history.Query) error {
	_, all, err := p.total()
	if err != nil {
		return err
	}
	var services []string
	for _, s := range all.Sums {
		services = append(services, s.Service)
	}
	slices.Sort(services)
	services = slices.Compact(services)
	if p.service != "" && !slices.Contains(services, p.service) {
		return meant(fmt.Errorf("the history has no service %q", p.service), p.service, services)
	}
	until := "now"
	if !q.To.IsZero() {
		until = shownTime(q.To)
	}
	return fmt.Errorf("the history has no matching sample from %s to %s: it covers %s to %s, and \"profile history list\" shows its content", shownTime(q.From), until, shownTime(all.Start), shownTime(all.End))
}

func shownTime(t time.Time) string { return t.Local().Format("Jan 2 15:04:05") }

// report prints an answer, and writes the same files as a run.
func (p *past) report(out io.Writer, o options, info runInfo, a history.Answer) error {
	if err := prepareDir(o.dir); err != nil {
		return err
	}
	counted := plural(a.Summary.Records, "request")
	if p.service == "" && p.gadget == "" {
		counted += ", " + plural(a.Summary.Rows, "row")
	}
	fmt.Fprintf(out, "%s to %s, %s\n", shownTime(a.Summary.Start), shownTime(a.Summary.End), counted)
	// A long range has many samples, so the files are written at the same time.
	var files errgroup.Group
	files.Go(func() error {
		return receiver.WritePprof(o.dir, []*collectorpb.ExportProfilesServiceRequest{a.Request}, o.fold())
	})
	files.Go(func() error {
		return create(filepath.Join(o.dir, samplesFile), func(w io.Writer) error { return receiver.WriteJSONLine(w, a.Request) })
	})
	types, byType := byWeight(receiver.Resolve(a.Request))
	for i, t := range types {
		files.Go(func() error {
			page := pageOf(t, byType[t], info, o.interpreters)
			page.Step, page.From = a.Step, a.From
			return writePage(filepath.Join(o.dir, pageName(i)), page)
		})
	}
	r := &result{opts: o, run: info, byService: true}
	var err error
	for _, t := range types {
		if err = errors.Join(err, r.table(out, t, byType[t])); err == nil && p.service == "" {
			services(out, t, byType[t], o.rows)
		}
	}
	for _, line := range notes(a) {
		fmt.Fprintln(out, "note:", line)
	}
	if err = errors.Join(err, files.Wait(), info.write(o.dir)); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	fmt.Fprintf(out, "\nwritten to %s; show it:    %s open %s\n", o.dir, os.Args[0], o.dir)
	return nil
}

// services prints each service's sum of a profile type.
func services(out io.Writer, t receiver.Type, samples []receiver.Sample, most int) {
	amounts, all := map[string]float64{}, 0.0
	for _, s := range samples {
		amounts[s.Service] += s.Amount()
		all += s.Amount()
	}
	names := slices.SortedFunc(maps.Keys(amounts), func(a, b string) int { return cmp.Or(cmp.Compare(amounts[b], amounts[a]), strings.Compare(a, b)) })
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\n  SHARE\t%s\t  SERVICE\n", report.Unit(t))
	for _, name := range names[:min(most, len(names))] {
		fmt.Fprintf(table, "  %.1f%%\t%.2f\t  %s\n", 100*amounts[name]/max(all, 1e-9), amounts[name], report.Shown(cmp.Or(name, "[no service]"), 60))
	}
	_ = table.Flush()
	if left := len(names) - most; left > 0 {
		fmt.Fprintf(out, "  and %s more\n", plural(int64(left), "service"))
	}
}

// notes returns remarks about an answer.
func notes(a history.Answer) []string {
	var lines []string
	for _, g := range a.Gaps[:min(5, len(a.Gaps))] {
		lines = append(lines, fmt.Sprintf("nothing was recorded from %s to %s", shownTime(g.From), shownTime(g.To)))
	}
	if more := len(a.Gaps) - 5; more > 0 {
		lines = append(lines, fmt.Sprintf("nothing was recorded in %d other time ranges either", more))
	}
	if a.Summary.End.After(time.Now().Add(time.Minute)) {
		lines = append(lines, "some data is ahead of this machine's clock, which was set back")
	}
	for _, d := range a.Damaged {
		lines = append(lines, d.Error()+": the rest of the file is left out")
	}
	if a.Rare > 0 {
		all := int64(0)
		for _, s := range a.Summary.Sums {
			all += s.Samples
		}
		lines = append(lines, fmt.Sprintf("%d of %d samples have rare stacks: %s replaces their callers, because there are too many stacks; a shorter time or --service shows them", a.Rare, all, history.RareStacks))
	}
	return lines
}

// list prints the content of a history.
func (p *past) list(out io.Writer) error {
	list, all, err := p.total()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s to %s, %s, %s in %s\n\n", p.folder, shownTime(all.Start), shownTime(all.End), plural(all.Rows, "row"), humanize.IBytes(uint64(all.Bytes)), plural(int64(len(list)), "segment"))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GADGET\tTYPE\tSERVICE\tVALUE\tUNIT\tFIRST\tLAST")
	for _, s := range all.Sums {
		if p.selected(history.Query{}).Takes(s.Service, s.Gadget) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", report.Shown(history.GadgetName(s.Gadget), 30), report.Shown(s.Type, 20), report.Shown(cmp.Or(s.Service, "[no service]"), 50), s.Value, report.Shown(s.Unit, 12), shownTime(time.Unix(0, int64(s.First))), shownTime(time.Unix(0, int64(s.Last))))
		}
	}
	_ = table.Flush()
	if all.More {
		fmt.Fprintln(out, "\nthere are too many services: [no service] contains the data of the smaller ones")
	}
	for _, s := range list {
		if s.Err != nil {
			fmt.Fprintf(out, "note: %v: queries leave out the rest of the file\n", s.Err)
		}
	}
	return nil
}
