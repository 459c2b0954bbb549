// demo-collector shows how to profile an OpenTelemetry Collector. It puts load on a Collector, samples it, and sends it its own
// profiles. Then it changes one setting of the senders, and shows the effect by function. "make demo-collector" builds and runs
// it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const (
	// tableRows is the number of functions in a table.
	tableRows = 15
	// frequency is above the gadget's default, for a result after seconds. It is odd, so sampling is not synchronous with the
	// load.
	frequency = 499
	// timeout limits the whole run.
	timeout = 2 * time.Minute
	// phaseAttribute is the resource attribute that distinguishes the profiles before and after the
	// change.
	phaseAttribute = "demo.phase"
)

// compressions lists the exporter's compressions.
var compressions = []string{"gzip", "zstd", "none"}

var errNotRoot = errors.New("loading eBPF programs requires root: use sudo")

type options struct {
	ig, collector  string
	image, archive string
	dir            string
	before, after  string
	duration       time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo-collector:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var opts options
	flags := flag.NewFlagSet("demo-collector", flag.ContinueOnError)
	flags.StringVar(&opts.ig, "ig", "build/bin/ig", "`path` of the ig command")
	flags.StringVar(&opts.collector, "collector", "build/bin/collector", "`path` of the Collector")
	flags.StringVar(&opts.image, "gadget", "profile_cpu:dev", "`image` of the gadget to run")
	flags.StringVar(&opts.archive, "archive", "build/gadgets/profile_cpu.tar", "`file` to import the image from, if set")
	flags.StringVar(&opts.dir, "dir", "build/demo-collector", "`folder` to write into")
	flags.StringVar(&opts.before, "before", "gzip", "the senders' compression before the change: gzip, zstd or none")
	flags.StringVar(&opts.after, "after", "none", "the senders' compression after the change")
	flags.DurationVar(&opts.duration, "duration", 12*time.Second, "how long to sample before the change, and after it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, c := range []string{opts.before, opts.after} {
		if !slices.Contains(compressions, c) {
			return fmt.Errorf("unknown compression %q: must be one of %s", c, strings.Join(compressions, ", "))
		}
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the demo did not finish within %s", timeout))
	defer cancel()
	if err := demo(ctx, opts, os.Stdout); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// phase is the time with one setting.
type phase struct {
	name, compression string
	// requests is counted by the senders, cpu by the kernel.
	requests int64
	cpu      time.Duration
	samples  []receiver.Sample
}

func demo(ctx context.Context, opts options, out io.Writer) (err error) {
	if err := os.MkdirAll(opts.dir, 0o755); err != nil {
		return fmt.Errorf("creating the folder for the results: %w", err)
	}
	if opts.archive != "" {
		if output, err := exec.CommandContext(ctx, opts.ig, "image", "import", opts.archive).CombinedOutput(); err != nil {
			return fmt.Errorf("importing the gadget from %s: %w\n%s", opts.archive, err, output)
		}
	}
	file := filepath.Join(opts.dir, "profiles.jsonl")
	c, err := startCollector(ctx, opts.collector, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	fmt.Fprintf(out, "the Collector is running as process %d: it receives load on %s, and writes the profiles from %s to %s\n", c.cmd.Process.Pid, c.load, c.profiles, file)

	windows, err := recordWindows()
	if err != nil {
		return err
	}
	size := 0
	for _, w := range windows {
		size += len(w.Body)
	}
	fmt.Fprintf(out, "load: %d requests per second of %d kB each, like a thousand nodes\n", perSecond, size/len(windows)/1000)
	phases := []*phase{{name: "before", compression: opts.before}, {name: "after", compression: opts.after}}
	for _, p := range phases {
		fmt.Fprintf(out, "%s: the senders use compression %s\n", p.name, p.compression)
		if err := p.run(ctx, opts, c, windows, out); err != nil {
			return err
		}
	}
	// This makes the Collector write its remaining data.
	if err := c.stop(); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading the Collector's output: %w", err)
	}
	requests, err := receiver.ReadJSONLines(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("reading the Collector's output in %s: %w", file, err)
	}
	for _, req := range requests {
		for _, s := range receiver.Resolve(req) {
			for _, p := range phases {
				if s.Resource[phaseAttribute] == p.name {
					p.samples = append(p.samples, s)
				}
			}
		}
	}
	return writeReport(opts.dir, phases[0], phases[1], out)
}

// run puts the load on the Collector and profiles it at the same time.
func (p *phase) run(ctx context.Context, opts options, c *collector, windows []window, out io.Writer) error {
	l, err := startLoad(c.load, p.compression, windows)
	if err != nil {
		return err
	}
	log, err := p.profile(ctx, opts, c, l, out)
	// Also stop the load after an error.
	if err := errors.Join(err, l.stop()); err != nil {
		return fmt.Errorf("%w\noutput of ig:\n%s", err, log)
	}
	return nil
}

// profile samples the Collector's process and sends the profiles to the Collector.
func (p *phase) profile(ctx context.Context, opts options, c *collector, l *load, out io.Writer) (log string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := append([]string{"run", opts.image}, igrun.GadgetFlags()...)
	args = append(args,
		fmt.Sprintf("--pid=%d", c.cmd.Process.Pid),
		fmt.Sprintf("--frequency=%d", frequency),
		fmt.Sprintf("--timeout=%d", int(opts.duration.Seconds())),
		"--otel-profiles-exporter=otlp",
		"--otel-profiles-endpoint=http://"+c.profiles,
		"--otel-profiles-interval=2s",
		"--output=none")
	cmd := igrun.Command(ctx, opts.ig, args...)
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=collector", "OTEL_RESOURCE_ATTRIBUTES="+phaseAttribute+"="+p.name)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	requests, cpu := l.delivered(), c.cpu()
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("starting ig: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticker := time.NewTicker(3 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			p.requests, p.cpu = l.delivered()-requests, c.cpu()-cpu
			if err != nil {
				return output.String(), fmt.Errorf("running ig: %w", err)
			}
			return output.String(), nil
		case <-ticker.C:
			fmt.Fprintf(out, "  … %d requests, %.1f CPU seconds of the Collector\n", l.delivered()-requests, (c.cpu() - cpu).Seconds())
		}
	}
}

// writeReport writes the results and their location.
func writeReport(dir string, before, after *phase, out io.Writer) error {
	written := []string{filepath.Join(dir, "profiles.jsonl")}
	for _, p := range []*phase{before, after} {
		if len(p.samples) == 0 {
			return fmt.Errorf("no profiles of the Collector arrived %s the change", p.name)
		}
		title := "CPU time of a Collector, compression " + p.compression
		page, picture := filepath.Join(dir, p.name+".html"), filepath.Join(dir, p.name+".svg")
		if err := errors.Join(
			writeFile(page, func(w io.Writer) error {
				return flamepage.Write(w, flamepage.Page{Title: title, Sides: []flamepage.Side{{Samples: p.samples}}})
			}),
			writeFile(picture, func(w io.Writer) error { return report.WriteFlameSVG(w, title, p.samples) }),
		); err != nil {
			return err
		}
		written = append(written, page, picture)
		fmt.Fprintf(out, "\nthe Collector's hot functions %s the change (compression %s):\n", p.name, p.compression)
		opts := report.Options{Group: func(receiver.Sample) string { return "" }}
		if err := report.WriteTop(out, receiver.TypeOf(p.samples[0]), "", report.Top(p.samples, tableRows, opts), opts); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	if err := writeDifference(out, before, after); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nwritten (open the .html file in a browser):\n  %s\n", strings.Join(written, "\n  "))
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	return errors.Join(write(f), f.Close())
}
