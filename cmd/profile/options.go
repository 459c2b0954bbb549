package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/pflag"
)

// Limits of --seconds: a day is more than anybody waits for, and less than the receiver holds of most machines.
const (
	defaultSeconds = 30
	maxSeconds     = 24 * 60 * 60
)

var errNotRoot = errors.New("eBPF programs are for root alone: run it with sudo")

// options is what the command line asks for.
type options struct {
	target target
	// gadget is as given: a short name, an image, or empty for the one that shows most.
	gadget string
	dir    string
	rows   int
	time   time.Duration
	// install says where ig and the gadgets are.
	install install
	// igFlags are passed on to ig.
	igFlags []string
}

func (o *options) addFlags(flags *pflag.FlagSet, seconds int) (asked *int) {
	asked = flags.Int("seconds", seconds, "how long to sample")
	flags.StringVarP(&o.dir, "output", "o", "", "`folder` to write into; a new one by default")
	flags.IntVar(&o.rows, "rows", 15, "functions to list")
	flags.StringVar(&o.install.ig, "ig", "", "`path` of the ig command; by default the one beside this program")
	flags.StringVar(&o.install.gadgets, "gadgets", "", "`folder` of the gadgets' images; by default found from this program")
	return asked
}

func (o *options) check(seconds int) error {
	if seconds < 1 || seconds > maxSeconds {
		return fmt.Errorf("--seconds %d: takes 1 to %d", seconds, maxSeconds)
	}
	if o.rows < 1 {
		return fmt.Errorf("--rows %d: takes 1 or more", o.rows)
	}
	o.time = time.Duration(seconds) * time.Second
	return nil
}

func parseProfile(args []string) (options, error) {
	var o options
	flags := newFlags("profile", usage)
	flags.IntVar(&o.target.pid, "pid", 0, "sample the process with this `number`")
	flags.StringVar(&o.target.comm, "comm", "", "sample the programs, or threads, of this `name`")
	flags.StringVar(&o.target.container, "container", "", "sample the container of this `name`")
	flags.StringVar(&o.gadget, "gadget", "", "what to show: alloc, cpu, lock, offcpu, pagefault, polyglot, or a gadget's `image`; by default the one that shows most")
	seconds := o.addFlags(flags, defaultSeconds)
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	rest := flags.Args()
	if dash := flags.ArgsLenAtDash(); dash >= 0 {
		rest, o.igFlags = rest[:dash], rest[dash:]
	}
	if len(rest) > 0 {
		return options{}, fmt.Errorf("%q is too much: a program is chosen with --pid, --comm or --container, and flags for ig come after \"--\"", rest[0])
	}
	if flags.Changed("pid") && o.target.pid <= 0 {
		return options{}, fmt.Errorf("--pid %d: takes the number of a process", o.target.pid)
	}
	if err := o.check(*seconds); err != nil {
		return options{}, err
	}
	if o.gadget == "alloc" && o.target.all() && len(o.igFlags) == 0 { // flags for ig can choose, too
		return options{}, errors.New("--gadget alloc makes each allocation slower, so it is for some processes: choose them with --pid, --comm or --container")
	}
	return o, o.target.check()
}

// runProfile samples what the command line asks for and reports it.
func runProfile(ctx context.Context, args []string, out io.Writer) error {
	opts, err := parseProfile(args)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	if err := opts.target.exists(); err != nil {
		return err
	}
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

// newDir returns the name of a folder that is not there yet.
func newDir(what string, now time.Time) (string, error) {
	name := "profile-" + what + now.Format("-20060102-150405")
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("%s is there already: name another folder with -o", name)
	}
	return name, nil
}

// resultFiles are the names of what this program writes.
var resultFiles = regexp.MustCompile(`^(profiles\.jsonl|run\.json|flamegraph(-[a-z0-9_-]+)?\.html|[A-Za-z0-9_-]+\.pb\.gz)$`)

// prepareDir makes the folder and removes what an earlier run left there.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder for the results: %w", err)
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for earlier results: %w", err)
	}
	for _, entry := range old {
		if !entry.Type().IsRegular() || !resultFiles.MatchString(entry.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("removing an earlier result: %w", err)
		}
	}
	return nil
}
