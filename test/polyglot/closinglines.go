package polyglot

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// ClosingLines holds the numbers in a run's closing lines: the results of its samples, and the unwinder's losses.
type ClosingLines struct {
	// Drawn counts all samples. Container counts samples of a container that had gone. Lost counts delivered samples without
	// their stack, because it did not arrive.
	Drawn, Container, Lost int64
	// These are stacks of all gadgets.
	InUnwinder, InKernel, Crashed, Restarts int64
	// Away is how many seconds no unwinder ran.
	Away float64
}

var (
	closingLine   = regexp.MustCompile(`unwind: (\d+) events sampled`)
	containerPart = regexp.MustCompile(`unwind: \d+ events sampled.*, (\d+) samples of a container that had exited`)
	lostPart      = regexp.MustCompile(`unwind: \d+ events sampled.*, (\d+) whose stack did not arrive`)
	unwinderLine  = regexp.MustCompile(`unwind: for all gadgets together, .*lost: (\d+) in the unwinder, (\d+) in the kernel, (\d+) in (\d+) restarts \(([\d.]+) s without an unwinder\)`)
)

// ErrNoClosingLine reports that a run's log has no closing lines.
var ErrNoClosingLine = errors.New("no closing lines of the operator unwind")

// ReadClosingLines finds the closing lines in the log of a run.
func ReadClosingLines(log string) (b ClosingLines, err error) {
	for _, part := range []struct {
		of     *regexp.Regexp
		needed bool
		to     []*int64
	}{
		{closingLine, true, []*int64{&b.Drawn}}, {containerPart, false, []*int64{&b.Container}}, {lostPart, false, []*int64{&b.Lost}},
		{unwinderLine, true, []*int64{&b.InUnwinder, &b.InKernel, &b.Crashed, &b.Restarts}},
	} {
		m := part.of.FindStringSubmatch(log)
		if m == nil && part.needed {
			return ClosingLines{}, ErrNoClosingLine
		}
		for i := range part.to {
			if m == nil {
				continue
			}
			if *part.to[i], err = strconv.ParseInt(m[i+1], 10, 64); err != nil {
				return b, fmt.Errorf("reading the closing line %q: %w", m[0], err)
			}
		}
		if part.of == unwinderLine {
			if b.Away, err = strconv.ParseFloat(m[len(m)-1], 64); err != nil {
				return b, fmt.Errorf("reading the closing line %q: %w", m[0], err)
			}
		}
	}
	return b, nil
}

// Check reports whether a sample is missing. Each sample must be delivered, unless its container no longer existed. Inspektor
// Gadget reads a gadget's rows for the last time before its timer ends. So the counts can differ by samples in between, at most
// one in a hundred.
func (b ClosingLines) Check(delivered int64) error {
	if missing := b.Drawn - b.Container - delivered; missing < -slack(b) || missing > slack(b) {
		return fmt.Errorf("%d samples were drawn, but %d delivered: %+v", b.Drawn, delivered, b)
	}
	return nil
}

func slack(b ClosingLines) int64 { return 10 + b.Drawn/100 }
