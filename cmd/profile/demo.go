package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const demoUsage = `profile demo runs busy programs in several languages and samples this machine. It prints the measured shares
of their functions next to the actual shares.

`

const demoSeconds = 10

func runDemo(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := newFlags("demo", demoUsage)
	flags.StringVar(&o.gadget, "gadget", "", "the gadget to run; by default cpu")
	seconds := o.addFlags(flags, demoSeconds)
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: demo takes only flags", flags.Arg(0))
	}
	if err := o.check(*seconds); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	if o.dir == "" {
		o.dir = "profile-demo"
	}
	dir, err := os.MkdirTemp("", "profile-demo-")
	if err != nil {
		return fmt.Errorf("creating a folder for the busy programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs, stop, err := startBusy(ctx, dir, out)
	if err != nil {
		return errors.Join(err, stop())
	}
	result, err := profile(ctx, o, out)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	result.unwritten = errors.Join(result.unwritten, writePicture(filepath.Join(result.opts.dir, pictureFile), programs, result.rcv.Samples()))
	if err := result.report(out); err != nil {
		return err
	}
	whole, _ := unwound(result.log)
	return writeShares(out, programs, result.rcv.Samples(), whole)
}

// writePicture draws a flame graph of only the busy programs, because users may publish the picture.
func writePicture(path string, programs []running, samples []receiver.Sample) error {
	types, byType := byWeight(samples)
	if len(types) == 0 {
		return nil
	}
	own := slices.DeleteFunc(byType[types[0]], func(s receiver.Sample) bool {
		return !slices.ContainsFunc(programs, func(p running) bool {
			return slices.ContainsFunc(p.functions[:], func(function string) bool { return p.calls(s.Stack, function) })
		})
	})
	if err := create(path, func(w io.Writer) error {
		return report.WriteFlameSVG(w, title(types[0])+" of the demo's programs", own)
	}); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}

// writeShares prints the measured shares of the busy programs' functions next to the real ones.
func writeShares(out io.Writer, programs []running, samples []receiver.Sample, whole bool) error {
	fmt.Fprintf(out, "\nthe demo's own busy programs, with functions that take %d, %d and %d %% of the CPU time:\n\n", busyShares[0], busyShares[1], busyShares[2])
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  PROGRAM\tMEASURED")
	for _, p := range programs {
		shares, seconds := measured(p, samples)
		if seconds == 0 {
			why := "whole stacks show them"
			if whole {
				why = "too few samples, or no symbols"
			}
			fmt.Fprintf(t, "  %s\tits functions have no names: %s\n", p.language, why)
			continue
		}
		parts := make([]string, len(shares))
		for i, share := range shares {
			parts[i] = fmt.Sprintf("%s %.1f%%", p.functions[i], share)
		}
		fmt.Fprintf(t, "  %s\t%s (of %.1f s)\n", p.language, strings.Join(parts, ", "), seconds)
	}
	return t.Flush()
}

// measured returns the shares of a program's functions in percent, and their total CPU seconds.
func measured(p running, samples []receiver.Sample) (shares [3]float64, seconds float64) {
	for _, s := range samples {
		for i, function := range p.functions {
			if p.calls(s.Stack, function) {
				amount, _ := s.Seconds()
				shares[i] += amount
				seconds += amount
				break
			}
		}
	}
	if seconds > 0 {
		for i := range shares {
			shares[i] *= 100 / seconds
		}
	}
	return shares, seconds
}
