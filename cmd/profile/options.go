package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

// These are the default and limit of --seconds. The receiver can keep a day's samples of most machines.
const (
	defaultSeconds = 30
	maxSeconds     = 24 * 60 * 60
)

// This is the default frequency of a short run. A gadget's own frequency is for long runs. With it, half a busy CPU would have
// fewer than a hundred samples in ten seconds.
const (
	shortLook      = time.Minute
	shortFrequency = 99
	// maxFrequency is the highest accepted frequency. The kernel's limit can be lower.
	maxFrequency = 10_000
	kernelLimit  = "/proc/sys/kernel/perf_event_max_sample_rate"
)

// hertz returns the sampling frequency for a gadget. 0 selects the gadget's own frequency.
func (o *options) hertz(g gadget) (int, error) {
	samples := g.name == ownGadgets["cpu"]
	own := slices.ContainsFunc(o.igFlags, func(f string) bool { return f == "--frequency" || strings.HasPrefix(f, "--frequency=") })
	switch {
	case o.frequency > 0 && own:
		return 0, errors.New("--frequency is set twice: once after \"--\"")
	case o.frequency > 0 && !samples && ownName(g.name):
		return 0, fmt.Errorf("--frequency is for the gadget cpu, which samples CPU time; %s counts events", g.name)
	case o.frequency == 0 && (own || !samples || o.time > shortLook):
		return 0, nil
	}
	limit := maxFrequency
	if text, err := os.ReadFile(kernelLimit); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	if o.frequency > limit {
		return 0, fmt.Errorf("--frequency %d: the kernel allows up to %d (sysctl kernel.perf_event_max_sample_rate)", o.frequency, limit)
	}
	return min(cmp.Or(o.frequency, shortFrequency), limit), nil
}

// ownName reports whether a gadget is one of this project's.
func ownName(name string) bool {
	return slices.Contains(slices.Collect(maps.Values(ownGadgets)), name)
}

var errNotRoot = errors.New("loading eBPF programs requires root: use sudo")

// options holds the parsed command line.
type options struct {
	target target
	// gadget is a short name, an image, or empty for the default.
	gadget string
	dir    string
	rows   int
	time   time.Duration
	// frequency is the number of samples per second of each busy CPU. If it is 0, the run's length decides.
	frequency int
	// interpreters shows interpreters' own frames, which are otherwise folded into the functions that they execute.
	interpreters bool
	// install holds the paths of ig and the gadgets.
	install install
	// igFlags are passed on to ig.
	igFlags []string
}

func (o *options) addFlags(flags *pflag.FlagSet, seconds int) (asked *string) {
	asked = flags.String("seconds", strconv.Itoa(seconds), "how long to sample: a number of seconds, or a duration such as 2m")
	flags.StringVarP(&o.dir, "output", "o", "", "`folder` to write into; a new one by default")
	flags.IntVar(&o.frequency, "frequency", 0, "samples per second of CPU time, for gadgets that sample CPU time; by default more for short runs")
	flags.IntVar(&o.rows, "rows", 15, "number of functions to list")
	addInterpreters(flags, &o.interpreters)
	flags.StringVar(&o.install.ig, "ig", "", "`path` of the ig command; by default next to this program")
	flags.StringVar(&o.install.gadgets, "gadgets", "", "`folder` of the gadgets' images; by default near this program")
	return asked
}

func addInterpreters(flags *pflag.FlagSet, to *bool) {
	flags.BoolVar(to, "interpreters", false, "also show an interpreter's own frames; by default, their time is attributed to the function that the interpreter executes")
}

// fold returns a function that selects the frames to omit from views.
func (o *options) fold() func([]receiver.Frame) []bool {
	if o.interpreters {
		return nil
	}
	return report.Interpreter
}

func (o *options) check(seconds string) error {
	var err error
	if o.time, err = duration(seconds); err != nil {
		return err
	}
	if o.frequency < 0 || o.frequency > maxFrequency {
		return fmt.Errorf("--frequency %d: must be 1 to %d", o.frequency, maxFrequency)
	}
	return nil
}

// duration parses a time in whole seconds: a number of seconds, or with units.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, notNumber := strconv.Atoi(text); notNumber == nil {
		d, err = time.Duration(min(max(n, 0), 2*maxSeconds))*time.Second, nil
	}
	if err != nil || d < time.Second || d > maxSeconds*time.Second || d%time.Second != 0 {
		return 0, fmt.Errorf("--seconds %s: must be 1 to %d, or a duration in whole seconds such as 90s or 2m", text, maxSeconds)
	}
	return d, nil
}

// processes parses a list of PIDs.
func processes(text string) ([]int, error) {
	var pids []int
	for word := range strings.SplitSeq(text, ",") {
		pid, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("--pid %s: must be a process ID, or several, such as 12,34; for a name, use --comm", text)
		}
		if !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func parseProfile(args []string) (options, error) {
	var o options
	flags := newFlags("profile", usage)
	pids := flags.StringP("pid", "p", "", "sample the process with this `PID`, or several PIDs, separated by commas")
	children := flags.Bool("children", false, "with --pid, also sample child processes; with a gadget's image, or a very long list of PIDs, only those that exist at the start")
	flags.StringVar(&o.target.comm, "comm", "", "sample the programs, or threads, with this `name`")
	flags.StringVar(&o.target.container, "container", "", "sample the container with this `name`")
	flags.StringVar(&o.gadget, "gadget", "", "the gadget: alloc, cpu, lock, offcpu, pagefault, or a gadget's `image`; by default cpu")
	seconds := o.addFlags(flags, defaultSeconds)
	if err := parse(flags, args); err != nil {
		if unknownFlag.MatchString(err.Error()) && errors.Unwrap(err) == nil { // parse knows no similar flag
			err = fmt.Errorf("%w: flags for ig and its gadgets come last, after \"--\"", err)
		}
		return options{}, err
	}
	rest := flags.Args()
	if dash := flags.ArgsLenAtDash(); dash >= 0 {
		rest, o.igFlags = rest[:dash], rest[dash:]
	}
	if len(rest) > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: choose a program with --pid, --comm or --container, and write flags for ig after \"--\"", rest[0])
	}
	var err error
	if flags.Changed("pid") {
		if o.target.list, err = processes(*pids); err != nil {
			return options{}, err
		}
	}
	if *children && len(o.target.list) == 0 {
		return options{}, errors.New("--children adds the child processes of --pid: set --pid")
	}
	if o.gadget, err = gadgetName(o.gadget); err != nil {
		return options{}, err
	}
	own := o.gadget == "" || ownGadgets[o.gadget] != ""
	o.target.children, o.target.byGadget = *children, own && len(o.target.also()) <= maxAlso
	if o.gadget == "alloc" && !o.target.byGadget {
		return options{}, errors.New("too many processes for --gadget alloc: use --comm for all processes with one name")
	}
	if err := o.check(*seconds); err != nil {
		return options{}, err
	}
	if o.gadget == "alloc" && o.target.all() && len(o.igFlags) == 0 { // flags for ig can also select processes
		return options{}, errors.New("--gadget alloc slows allocations down, so you must choose processes: use --pid, --comm or --container")
	}
	return o, o.target.check()
}

// settle adds the child processes that exist now, unless the gadget finds them.
func (o *options) settle() {
	if o.target.children && !o.target.byGadget {
		o.target.list, o.target.children, o.target.settled = withChildren(o.target.list, parents()), false, true
	}
}

// runProfile samples according to the command line, and reports the result.
func runProfile(ctx context.Context, args []string, out io.Writer) error {
	opts, err := parseProfile(args)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	signal.Ignore(syscall.SIGPIPE) // the files are also complete if the output's reader, such as head, goes away
	if err := opts.target.exists(opts.igFlags); err != nil {
		return err
	}
	opts.settle()
	if opts.dir == "" {
		if opts.dir, err = newDir(opts.target.fileName(), time.Now()); err != nil {
			return err
		}
	}
	result, err := profile(ctx, opts, out)
	if err != nil {
		return err
	}
	return result.report(out)
}

// newDir returns the name of a folder that does not exist yet.
func newDir(what string, now time.Time) (string, error) {
	name := "profile-" + what + now.Format("-20060102-150405")
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("%s already exists: name another folder with -o", name)
	}
	return name, nil
}

// resultFiles matches the names of the files that this program writes.
var resultFiles = regexp.MustCompile(`^(profiles\.jsonl|run\.json|flamegraph(-[0-9]+)?\.html|flamegraph\.svg|profile\.pb\.gz)$`)

// removeResults removes a result's files from a folder: all, or only empty ones. It returns the number of remaining entries.
func removeResults(dir, which string, empty bool) (left int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("looking for %s results: %w", which, err)
	}
	left = len(entries)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || empty && info.Size() > 0 || !resultFiles.MatchString(entry.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return 0, fmt.Errorf("removing an %s result: %w", which, err)
		}
		left--
	}
	return left, nil
}

// removeEmpty removes empty files, which result from a run without samples or a full disk. If made is true, the folder is new,
// and is also removed if it is empty.
func removeEmpty(dir string, made bool) error {
	left, err := removeResults(dir, "empty", true)
	if err == nil && made && left == 0 {
		if err = os.Remove(dir); err != nil {
			return fmt.Errorf("removing the folder for the results: %w", err)
		}
	}
	return err
}

// create writes a file that only its owner can read. After an error, it removes the file.
func create(file string, write func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

// prepareDir creates the folder and removes an earlier run's files.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the folder for the results: %w", err)
	}
	_, err := removeResults(dir, "earlier", false)
	return err
}
