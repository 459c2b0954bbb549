package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	// sendEvery is short, so that there is progress to see; ig's default is 10 s.
	sendEvery = 2 * time.Second
	// settleTime is how long ig may take to load the gadget, and again to end.
	settleTime = 60 * time.Second
)

// result is what a run has given.
type result struct {
	opts   options
	gadget gadget
	run    runInfo
	rcv    *receiver.Receiver
	// log is what ig said.
	log string
	// cpu is the CPU time that the process of --pid used meanwhile, and gone that it has ended.
	cpu  time.Duration
	gone bool
}

// profile samples the target and returns what has arrived. The result's files are written, but for the
// flame graph.
func profile(ctx context.Context, opts options, out io.Writer) (res *result, err error) {
	if err := opts.install.find(); err != nil {
		return nil, err
	}
	g, err := opts.install.choose(opts.gadget)
	if err != nil {
		return nil, err
	}
	if err := opts.install.load(ctx, g, out); err != nil {
		return nil, err
	}
	if err := prepareDir(opts.dir); err != nil {
		return nil, err
	}
	rcv, err := receiver.Start(receiver.Options{Dir: opts.dir})
	if err != nil {
		return nil, err
	}
	// Close writes the pprof files; further calls do nothing.
	defer func() { err = errors.Join(err, rcv.Close()) }()

	res = &result{opts: opts, gadget: g, rcv: rcv}
	fmt.Fprintf(out, "sampling %s for %d s with %s\n", opts.target, int(opts.time.Seconds()), g.image)
	if g.chosen != "" {
		fmt.Fprintf(out, "  (%s)\n", g.chosen)
	}
	before, _ := cpuTime(opts.target.pid)
	started := time.Now()
	interrupted, err := res.sample(ctx, out)
	if err != nil {
		return nil, fmt.Errorf("%w\nwhat ig said:\n%s", err, res.log)
	}
	res.run = runInfo{Target: opts.target.String(), Gadget: g.image, Started: started.UTC(), Seconds: opts.time.Seconds()}
	if interrupted {
		// Without the time that ig took to start, which is not known: close enough for a comparison.
		res.run.Seconds = min(res.run.Seconds, time.Since(started).Seconds())
	}
	if opts.target.pid != 0 {
		after, there := cpuTime(opts.target.pid)
		res.cpu, res.gone = after-before, !there
	}
	return res, res.run.write(opts.dir)
}

// igArgs are the arguments of ig.
func igArgs(opts options, g gadget, endpoint string) []string {
	args := []string{"run", g.image, "--auto-mount-filesystems"}
	if g.archive != "" {
		// It was built here and is not signed.
		args = append(args, "--verify-image=false")
	}
	args = append(args, opts.target.igFlags()...)
	args = append(args,
		fmt.Sprintf("--timeout=%d", int(opts.time.Seconds())),
		"--otel-profiles-exporter=otlp",
		"--otel-profiles-endpoint=http://"+endpoint,
		"--otel-profiles-interval="+sendEvery.String(),
		"--output=none")
	return append(args, opts.igFlags...)
}

// sample runs ig until its time is over, or the context ends, which is no error. It sets what ig said.
func (r *result) sample(ctx context.Context, out io.Writer) (interrupted bool, err error) {
	limited, cancel := context.WithTimeout(ctx, r.opts.time+2*settleTime)
	defer cancel()
	cmd := igrun.Command(limited, r.opts.install.ig, igArgs(r.opts, r.gadget, r.rcv.Addr())...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	// An interrupt from the terminal is passed on by the context, once.
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting ig: %w", err)
	}
	started := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticker := time.NewTicker(sendEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			r.log = log.String()
			switch {
			case ctx.Err() != nil:
				fmt.Fprintln(out, "  stopped early")
				return true, nil
			case limited.Err() != nil:
				return false, fmt.Errorf("running ig: not done after %s", r.opts.time+2*settleTime)
			case err != nil:
				return false, fmt.Errorf("running ig: %w", err)
			}
			return false, nil
		case <-ticker.C:
			got := r.rcv.Stats()
			if got.Requests == 0 {
				fmt.Fprintf(out, "  … %d s: nothing yet\n", int(time.Since(started).Seconds()))
				continue
			}
			fmt.Fprintf(out, "  … %d s: %d samples in %d requests\n", int(time.Since(started).Seconds()), got.Samples, got.Requests)
		}
	}
}

// nothing says why there is no sample.
func (r *result) nothing() error {
	t, seconds := r.opts.target, int(r.opts.time.Seconds())
	waits := strings.Contains(r.gadget.name, "offcpu")
	var why string
	switch {
	case r.gone:
		why = fmt.Sprintf("process %d has ended", t.pid)
	case t.pid != 0 && !waits && r.cpu == 0:
		why = fmt.Sprintf("it used no CPU time in these %d s: it waits, and --gadget offcpu shows what for. If it has processes of its own that work, profile those: ps --ppid %d", seconds, t.pid)
	case t.pid != 0 && !waits:
		why = fmt.Sprintf("it used %.2f s of CPU time in these %d s: sample for longer", r.cpu.Seconds(), seconds)
	case t.comm != "" && named(t.comm) == 0:
		why = fmt.Sprintf("no program or thread is called %q now; ps -eLo pid,comm lists them", t.comm)
	case t.comm != "" && !waits:
		why = "what has that name uses no CPU time: --gadget offcpu shows what it waits for"
	case t.container != "":
		why = "no container of that name did anything that the gadget sees; \"ig list-containers\" lists those that ig knows"
	case t.all():
		why = "was every CPU idle?"
	default:
		why = "the gadget saw nothing of it in this time"
	}
	err := fmt.Errorf("no sample of %s: %s", t, why)
	if said := warnings(r.log); said != "" {
		err = fmt.Errorf("%w\nwhat ig said:\n%s", err, said)
	}
	return err
}

// warnings returns the lines of ig's log that warn, the last ten.
func warnings(log string) string {
	var lines []string
	for s := bufio.NewScanner(strings.NewReader(log)); s.Scan(); {
		if strings.Contains(s.Text(), "level=warn") || strings.Contains(s.Text(), "level=error") ||
			strings.HasPrefix(s.Text(), "WARN") || strings.HasPrefix(s.Text(), "ERRO") || strings.HasPrefix(s.Text(), "Error") {
			lines = append(lines, "  "+s.Text())
		}
	}
	lines = slices.Compact(lines)
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
