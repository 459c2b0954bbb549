// demo shows on this machine what the exporter does, without any backend: it
// receives the profiles that ig sends, checks and sums them up. "make demo"
// builds what it needs and runs it.
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
	"strings"
	"syscall"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	// tableRows is how many functions the table has.
	tableRows = 15
	// sendEvery is short, so that there is progress to see; the default is 10 s.
	sendEvery = 2 * time.Second
	// settleTime is how long ig may take to load the gadget, and again to end.
	settleTime = 60 * time.Second
)

var errNotRoot = errors.New("eBPF programs are for root alone: run it with sudo")

type options struct {
	ig       string
	image    string
	archive  string
	dir      string
	duration time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 1 && args[0] == burnCommand {
		return burn(os.Stdin)
	}
	var opts options
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.StringVar(&opts.ig, "ig", "build/bin/ig", "`path` of the ig command")
	flags.StringVar(&opts.image, "gadget", "profile_cpu:dev", "`image` of the gadget to run")
	flags.StringVar(&opts.archive, "archive", "build/gadgets/profile_cpu.tar", "`file` to import the image from, if set")
	flags.StringVar(&opts.dir, "dir", "build/demo", "`folder` to write into")
	flags.DurationVar(&opts.duration, "duration", 8*time.Second, "how long to sample")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	return demo(ctx, opts, os.Stdout)
}

func demo(ctx context.Context, opts options, out io.Writer) (err error) {
	if err := prepareDir(opts.dir); err != nil {
		return err
	}
	if opts.archive != "" {
		if output, err := exec.CommandContext(ctx, opts.ig, "image", "import", opts.archive).CombinedOutput(); err != nil {
			return fmt.Errorf("importing the gadget from %s: %w\n%s", opts.archive, err, output)
		}
	}
	rcv, err := receiver.Start(receiver.Options{Dir: opts.dir})
	if err != nil {
		return err
	}
	// Close writes the pprof files; the one below is for the other ways out.
	defer func() { err = errors.Join(err, rcv.Close()) }()

	stopBurner, err := startBurner()
	if err != nil {
		return err
	}
	log, err := sample(ctx, opts, rcv, out)
	err = errors.Join(err, stopBurner())
	if err != nil {
		return fmt.Errorf("%w\nwhat ig said:\n%s", err, log)
	}
	if err := rcv.Close(); err != nil {
		return err
	}
	return report(opts, rcv, out)
}

// prepareDir makes the folder and removes what an earlier run left there.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder for the results: %w", err)
	}
	for _, pattern := range []string{"profiles.jsonl", "*.pb.gz", "*.html"} {
		old, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return fmt.Errorf("looking for earlier results in %s: %w", dir, err)
		}
		for _, file := range old {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("removing an earlier result: %w", err)
			}
		}
	}
	return nil
}

// startBurner starts the busy program, which is this one with another argument.
// The function that it returns ends it.
func startBurner() (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.Command(self, burnCommand)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the busy program: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the busy program: %w", err)
	}
	return func() error {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			return fmt.Errorf("ending the busy program: %w", err)
		}
		return nil
	}, nil
}

// sample runs ig until its time is over and returns what it wrote to stderr.
func sample(ctx context.Context, opts options, rcv *receiver.Receiver, out io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, opts.duration+2*settleTime)
	defer cancel()
	args := append([]string{"run", opts.image}, igrun.GadgetFlags()...)
	args = append(args,
		"--timeout", fmt.Sprint(int(opts.duration.Seconds())),
		"--otel-profiles-exporter=otlp",
		"--otel-profiles-endpoint=http://"+rcv.Addr(),
		"--otel-profiles-interval="+sendEvery.String(),
		"--output", "none")
	cmd := igrun.Command(ctx, opts.ig, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log

	fmt.Fprintf(out, "sampling all CPUs for %s, sending to %s\n", opts.duration, rcv.Addr())
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("starting ig: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticker := time.NewTicker(sendEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return log.String(), fmt.Errorf("running ig: %w", err)
			}
			return log.String(), nil
		case <-ticker.C:
			got := rcv.Stats()
			fmt.Fprintf(out, "  … %d samples in %d requests\n", got.Samples, got.Requests)
		}
	}
}

// report prints what arrived, writes the flame graph and says where everything is.
func report(opts options, rcv *receiver.Receiver, out io.Writer) error {
	samples := rcv.Samples()
	if len(samples) == 0 {
		return errors.New("no samples arrived: was every CPU idle?")
	}
	page := filepath.Join(opts.dir, "flamegraph.html")
	if err := writeFlameGraph(page, samples); err != nil {
		return err
	}

	seconds := 0.0
	events := int64(0)
	for _, s := range samples {
		t, _ := s.Seconds()
		seconds += t
		events += s.Total()
	}
	fmt.Fprintln(out)
	if err := receiver.WriteTop(out, receiver.Top(samples, tableRows)); err != nil {
		return err
	}
	stats := rcv.Stats()
	fmt.Fprintf(out, "\n%.1f CPU seconds in %d hits of the timer, delivered as %d samples in %d requests (%d bytes)\n",
		seconds, events, stats.Samples, stats.Requests, stats.Bytes)
	reportShares(out, samples)

	findings := rcv.Findings()
	if len(findings) == 0 {
		fmt.Fprintf(out, "protocol check: %d requests, no rule broken\n", stats.Requests)
	}
	for _, finding := range findings {
		fmt.Fprintf(out, "protocol check: %v\n", finding)
	}

	fmt.Fprintln(out, "\nwritten:")
	files, err := filepath.Glob(filepath.Join(opts.dir, "*"))
	if err != nil {
		return fmt.Errorf("listing the results in %s: %w", opts.dir, err)
	}
	for _, file := range files {
		fmt.Fprintf(out, "  %-36s %s\n", file, describe(file))
	}
	next := append(igrun.Prefix(), opts.ig, "run", opts.image)
	next = append(next, igrun.GadgetFlags()...)
	next = append(next, "--otel-profiles-exporter=otlp", "--otel-profiles-endpoint=http://localhost:4317")
	fmt.Fprintf(out, "\nnext, to your own OpenTelemetry Collector:\n  %s\n", shellLine(next))
	if len(findings) > 0 {
		return fmt.Errorf("%d rules of the protocol broken", len(findings))
	}
	return nil
}

// reportShares prints what was measured of the busy program beside what it did.
func reportShares(out io.Writer, samples []receiver.Sample) {
	byFunction := map[string]int64{}
	all := int64(0)
	for _, s := range samples {
		for _, frame := range s.Stack {
			if isJob(frame.Name) {
				byFunction[frame.Name] += s.Total()
				all += s.Total()
				break
			}
		}
	}
	if all == 0 {
		return
	}
	var shares []string
	for _, j := range jobs() {
		shares = append(shares, fmt.Sprintf("%s %.1f%% (true: %d%%)",
			j.function, 100*float64(byFunction[j.function])/float64(all), j.percent))
	}
	fmt.Fprintf(out, "the demo's own busy program: %s\n", strings.Join(shares, ", "))
}

func writeFlameGraph(path string, samples []receiver.Sample) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	err = receiver.WriteFlameGraph(f, "CPU time of this machine", samples)
	return errors.Join(err, f.Close())
}

func describe(file string) string {
	switch {
	case strings.HasSuffix(file, ".html"):
		return "flame graph: open it in a browser"
	case strings.HasSuffix(file, ".pb.gz"):
		return "pprof: go tool pprof -http=localhost:8080 " + file
	case strings.HasSuffix(file, ".jsonl"):
		return "the requests as OTLP JSON, one a line"
	}
	return ""
}

// shellLine quotes what a shell would take apart.
func shellLine(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if strings.ContainsAny(arg, " $&\"") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
