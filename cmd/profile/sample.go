package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const (
	// sendEvery is the interval between ig's requests. It gives ig time to read programs' files, because samples that are sent
	// too early lack names.
	sendEvery = 10 * time.Second
	// tellEvery is the time between two progress messages.
	tellEvery = 2 * time.Second
	// startTime limits how long the gadget and the unwinder take to start. This takes minutes if a hundred threads compete for
	// a CPU. endTime limits how long they take to exit.
	startTime = 5 * time.Minute
	endTime   = time.Minute
)

// result is the outcome of a run.
type result struct {
	opts   options
	gadget gadget
	run    runInfo
	rcv    *receiver.Receiver
	// byService groups the table by service, not by program.
	byService bool
	// log is ig's log.
	log string
	// cpu is the CPU time of the chosen processes while the gadget sampled. below is the CPU time of descendants that it did not
	// sample. gone reports that all processes of --pid have exited.
	cpu, below time.Duration
	gone       bool
	// early reports that ig exited too early.
	early bool
	// began is when the gadget began to sample. If ig's log does not say so, began is when ig started.
	began time.Time
	// unwritten is the error of writing files, for example on a full disk.
	unwritten error
}

// profile samples the target and returns the received profiles. It writes the result's files, except for the flame graph.
func profile(ctx context.Context, opts options, out io.Writer) (res *result, err error) {
	if err := opts.install.find(); err != nil {
		return nil, err
	}
	g, err := opts.install.choose(opts.gadget)
	if err != nil {
		return nil, err
	}
	if opts.frequency, err = opts.hertz(g); err != nil {
		return nil, err
	}
	if err := opts.install.load(ctx, g, out); err != nil {
		return nil, err
	}
	_, missing := os.Stat(opts.dir)
	if err := prepareDir(opts.dir); err != nil {
		return nil, err
	}
	rcv, err := receiver.Start(receiver.Options{Dir: opts.dir, Fold: opts.fold()})
	if err != nil {
		return nil, err
	}
	// Close writes the pprof file. Further calls do nothing.
	defer func() { err = errors.Join(err, rcv.Close(), removeEmpty(opts.dir, missing != nil)) }()

	res = &result{opts: opts, gadget: g, rcv: rcv}
	often := ""
	if opts.frequency > 0 {
		often = fmt.Sprintf(", %d times per second of CPU time", opts.frequency)
	}
	fmt.Fprintf(out, "sampling %s for %d s with %s%s\n", opts.target, int(opts.time.Seconds()), g.image, often)
	interrupted, err := res.sample(ctx, out)
	if err != nil {
		return nil, fmt.Errorf("%w\noutput of ig:\n%s", err, res.log)
	}
	res.run = runInfo{Target: opts.target.String(), Gadget: g.image, Started: res.began.UTC(), Seconds: opts.time.Seconds()}
	if interrupted {
		res.run.Seconds = min(res.run.Seconds, time.Since(res.began).Seconds())
	}
	res.write()
	return res, nil
}

// write writes the files of the samples. report returns its errors, because the tables are complete without the files.
func (r *result) write() {
	if r.rcv.Stats().Requests > 0 {
		r.unwritten = r.run.write(r.opts.dir)
	}
	r.unwritten = errors.Join(r.unwritten, r.rcv.Close())
}

// igArgs returns the arguments of ig.
func igArgs(opts options, g gadget, endpoint string) []string {
	args := []string{"run", g.image, "--auto-mount-filesystems"}
	if g.archive != "" {
		// The image is not signed.
		args = append(args, "--verify-image=false")
	}
	args = append(args, opts.target.igFlags()...)
	args = append(args,
		"--otel-profiles-exporter=otlp",
		"--otel-profiles-endpoint=http://"+endpoint,
		"--output=none")
	if opts.frequency > 0 {
		args = append(args, fmt.Sprintf("--frequency=%d", opts.frequency))
	}
	return append(append(args, shortRun[g.name]...), opts.igFlags...)
}

// shortRun contains flags for gadgets whose defaults give too few samples in a short run. The user's flags come later and
// override these.
var shortRun = map[string][]string{"profile_alloc": {"--sample-bytes=32768"}}

// sample runs ig until the run's time is over or ctx ends. Neither is an error. It sets the log.
func (r *result) sample(ctx context.Context, out io.Writer) (interrupted bool, err error) {
	limit := startTime + r.opts.time + endTime
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append(igArgs(r.opts, r.gadget, r.rcv.Addr()), "--otel-profiles-interval="+sendEvery.String())
	args = append(args, fmt.Sprintf("--timeout=%d", int(r.opts.time.Seconds())))
	cmd := igrun.Command(limited, r.opts.install.ig, args...)
	log := newLog()
	cmd.Stdout, cmd.Stderr = log, log
	// In a new process group, ig does not get the terminal's interrupt. It gets only the signal that ctx triggers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting ig: %w", err)
	}
	started := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	said := ""
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	var before cpuUsage
	var over <-chan struct{}
	begun := log.begun
	for {
		select {
		case <-begun:
			sampling, cancel := context.WithTimeout(ctx, r.opts.time)
			defer cancel()
			begun, over, before = nil, sampling.Done(), usageOf(r.opts.target.list)
		case <-over:
			over = nil
			r.used(before)
		case err := <-ended:
			if over != nil {
				r.used(before)
			}
			r.log, r.began = log.String(), cmp.Or(log.gadgetStarted(), started)
			switch {
			case ctx.Err() != nil && log.gadgetStarted().IsZero():
				return false, errors.New("stopped before the gadget began to sample")
			case ctx.Err() != nil:
				fmt.Fprintln(out, "  stopped early")
				return true, nil
			case limited.Err() != nil:
				return false, fmt.Errorf("running ig: not finished after %s", limit)
			case err != nil:
				return false, fmt.Errorf("running ig: %w", err)
			}
			r.early = time.Since(r.began) < r.opts.time
			return r.early, nil
		case <-ticker.C:
			if now := progress(time.Now(), started, log.gadgetStarted(), r.opts.time); now != said {
				fmt.Fprintln(out, "  …", now)
				said = now
			}
		}
	}
}

// used sets the CPU time of the processes of --pid since the gadget began to sample.
func (r *result) used(before cpuUsage) {
	after := usageOf(r.opts.target.list)
	r.gone = len(r.opts.target.list) > 0 && len(after.own) == 0
	if r.cpu, r.below = after.since(before); r.opts.target.children {
		r.cpu, r.below = r.cpu+r.below, 0
	}
}

// progress describes the progress of a run. A gadget takes seconds to start, or half a minute on a busy machine.
func progress(now, started, began time.Time, look time.Duration) string {
	switch {
	case began.IsZero():
		if tens := int(now.Sub(started).Seconds()) / 10 * 10; tens > 0 {
			return fmt.Sprintf("still starting the gadget after %d s: the kernel is checking its programs", tens)
		}
		return "starting the gadget"
	case now.Sub(began) < look:
		return fmt.Sprintf("%d of %d s", int(now.Sub(began).Seconds()), int(look.Seconds()))
	}
	return "stopping the gadget"
}

// nothing returns an error that explains why there is no sample.
func (r *result) nothing() error {
	t, seconds := r.opts.target, math.Round(r.run.Seconds)
	waits, cpu := strings.Contains(r.gadget.name, "offcpu"), r.gadget.name == ownGadgets["cpu"]
	var why string
	switch {
	case r.gone:
		why = "process " + t.numbers(8) + " has exited"
	case r.early && lastSaid(errorLine, r.log) != "":
		return fmt.Errorf("no sample of %s: ig exited early: %s", t, report.Shown(lastSaid(errorLine, r.log), 512))
	case r.below > r.cpu:
		why = r.others()
	case t.comm != "" && named(t.comm) == 0:
		why = fmt.Sprintf("no program or thread has the name %q now: ps -eLo pid,comm lists all names", t.comm)
	case r.gadget.name == ownGadgets["lock"] && counted(ofOtherKinds, r.log) > 0:
		why = strings.Join(append(r.unseen(nil), fmt.Sprintf("%d waits in the system call futex belong to no recognized lock: \"-- --all-futex\" shows them, and --gadget offcpu shows all waits", counted(ofOtherKinds, r.log))), "; ")
	case r.gadget.name == ownGadgets["lock"] && len(r.unseen(nil)) > 0:
		why = strings.Join(r.unseen(nil), "; ")
	case r.gadget.name == ownGadgets["lock"] && t.container == "":
		why = "no wait for a lock ended in this time: --gadget offcpu shows all waits"
	case r.gadget.name == ownGadgets["alloc"] && counted(sampledEvents, r.log) > 0:
		why = fmt.Sprintf("%d of its allocations were sampled, and all of them were freed before the gadget read them: omit --live to see all allocations", counted(sampledEvents, r.log))
	case len(t.list) > 0 && !waits && r.cpu == 0:
		why = fmt.Sprintf("it used no CPU time in %.0f s: --gadget offcpu shows its waits", seconds)
	case !waits && len(r.unseen(nil)) > 0:
		why = strings.Join(r.unseen(nil), "; ")
	case r.gadget.name == ownGadgets["alloc"] && t.container == "":
		why = "none of its allocations was sampled in this time: sample for longer, or sample more of them with \"-- --sample-bytes=4096\""
	case r.gadget.name == ownGadgets["pagefault"] && t.container == "":
		why = fmt.Sprintf("no page fault occurred in %.0f s: most occur when a program uses memory for the first time", seconds)
	case len(t.list) > 0 && cpu:
		why = fmt.Sprintf("it used %.2f s of CPU time in %.0f s: sample for longer", r.cpu.Seconds(), seconds)
	case t.comm != "" && cpu:
		why = "the programs and threads with that name use no CPU time: --gadget offcpu shows their waits"
	case t.container != "":
		why = "the gadget recorded no events in a container with that name; \"ig list-containers\" lists the containers that ig knows"
	case waits:
		why = "a wait counts when it ends, and none has ended in this time: sample for longer"
	case t.all() && cpu:
		why = "every CPU may have been idle: sample for longer"
	default:
		why = "the gadget recorded no events: sample for longer, or while the programs are busy"
	}
	err := fmt.Errorf("no sample of %s: %s", t, why)
	if said := warnings(r.log, t.container != ""); said != "" {
		err = fmt.Errorf("%w\noutput of ig:\n%s", err, said)
	}
	return err
}

// These match counts of events, by result, in ig's last lines.
var (
	ofOtherKinds  = regexp.MustCompile(`\b(\d+) of other kinds\b`)
	sampledEvents = regexp.MustCompile(`\bcaptures: \d+ events, (\d+) sampled:`)
)

// counted returns the sum of the matching numbers in ig's log.
func counted(what *regexp.Regexp, log string) int {
	n := 0
	for _, found := range what.FindAllStringSubmatch(log, -1) {
		if more, err := strconv.Atoi(found[1]); err == nil {
			n += more
		}
	}
	return n
}

// warnings returns the last ten warnings of ig's log. It includes warnings about containers only if a container was selected.
func warnings(log string, containers bool) string {
	var lines []string
	for s := bufio.NewScanner(strings.NewReader(log)); s.Scan(); {
		line := s.Text()
		if !strings.Contains(line, "level=warn") && !strings.Contains(line, "level=error") && !strings.HasPrefix(line, "Error") {
			continue
		}
		about := strings.Contains(line, "container-collection")
		if strings.Contains(line, "signature verification is disabled") || about && !containers {
			continue
		}
		lines = append(lines, "  "+line)
	}
	lines = slices.Compact(lines)
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// errorLine matches an error in ig's log, with its message.
var errorLine = regexp.MustCompile(`level=error msg=("(?:[^"\\]|\\.)*")`)

// lastSaid returns the last message in ig's log that matches, or "".
func lastSaid(what *regexp.Regexp, log string) string {
	found := what.FindAllStringSubmatch(log, -1)
	if len(found) == 0 {
		return ""
	}
	said, _ := strconv.Unquote(found[len(found)-1][1]) // empty if it is not in Go's syntax, in which ig quotes
	return said
}

// framePointers matches the log line with the reason why ig uses frame pointers.
var framePointers = regexp.MustCompile(`msg=("unwind: stacks use frame pointers: (?:[^"\\]|\\.)*")`)

// unwound reports whether the run's stacks are whole. If they are not, it returns the reason.
func unwound(log string) (whole bool, why string) {
	why = strings.TrimPrefix(lastSaid(framePointers, log), "unwind: stacks use frame pointers: ")
	return why == "" && strings.Contains(log, "unwind: stacks are whole"), why
}

// unwoundShare matches the share of unwound events in ig's last lines, and the results of other events.
var unwoundShare = regexp.MustCompile(`msg="unwind: \d+ events sampled, \d+ unwound \(([\d.]+) % [^)]*\), ([^";]*)`)

// notUnwound returns the share of sampled events without a whole stack, and describes these events.
func notUnwound(log string) (share float64, which string) {
	m := unwoundShare.FindStringSubmatch(log)
	if m == nil {
		return 0, ""
	}
	percent, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, ""
	}
	return 1 - percent/100, m[2]
}
