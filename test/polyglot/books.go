package polyglot

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// Books is what the closing line of a run says: where the samples are that the unwinder has taken meanwhile.
type Books struct {
	Taken, HandedOn, Filtered, LeftOut, Container, NoStack, Here, InUnwinder, InKernel, Crashed, Restarts int64
	// Away is for how many seconds there were no samples.
	Away float64
}

var closingLine = regexp.MustCompile(`unwinder: (\d+) samples taken, (\d+) handed on, (\d+) filtered out, (\d+) left out for a lower frequency, ` +
	`(\d+) of a container that had gone, (\d+) without a stack, lost: (\d+) here, (\d+) in the unwinder, (\d+) in the kernel, (\d+) in (\d+) restarts \(([\d.]+) s without samples\)`)

// ErrNoClosingLine says that the log of a run has none.
var ErrNoClosingLine = errors.New("no closing line of the unwinder")

// ReadBooks finds the closing line in the log of a run.
func ReadBooks(log string) (Books, error) {
	m := closingLine.FindStringSubmatch(log)
	if m == nil {
		return Books{}, ErrNoClosingLine
	}
	var b Books
	for i, n := range []*int64{&b.Taken, &b.HandedOn, &b.Filtered, &b.LeftOut, &b.Container, &b.NoStack, &b.Here, &b.InUnwinder, &b.InKernel, &b.Crashed, &b.Restarts} {
		var err error
		if *n, err = strconv.ParseInt(m[i+1], 10, 64); err != nil {
			return b, fmt.Errorf("reading the closing line %q: %w", m[0], err)
		}
	}
	var err error
	if b.Away, err = strconv.ParseFloat(m[len(m)-1], 64); err != nil {
		return b, fmt.Errorf("reading the closing line %q: %w", m[0], err)
	}
	return b, nil
}

// Dropped are the samples that metrics have as dropped, all reasons together. Those lost in the kernel were not taken.
func (b Books) Dropped() int64 {
	return b.Container + b.NoStack + b.Here + b.InUnwinder + b.InKernel + b.Crashed
}

// Check tells whether a sample is missing: each that was taken was delivered, or is among those that have a reason.
func (b Books) Check(delivered int64) error {
	if sum := b.HandedOn + b.Filtered + b.LeftOut + b.Dropped() - b.InKernel; sum != b.Taken {
		return fmt.Errorf("%d samples were taken, and %d are in the books: %+v", b.Taken, sum, b)
	}
	if delivered != b.HandedOn {
		return fmt.Errorf("%d samples were handed on, and %d delivered: %+v", b.HandedOn, delivered, b)
	}
	return nil
}
