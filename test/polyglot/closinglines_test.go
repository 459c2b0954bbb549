package polyglot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const closingLines = `msg="unwind: 5000 events sampled, 4000 unwound (80.0 % of the samples), 1000 of processes that the unwinder had not detected yet (20.0 % of the samples), ` +
	`3 whose stack did not arrive (0.1 % of the samples), 200 samples of a container that had exited"
msg="unwind: for all gadgets together, the unwinder collected 4000 stacks, with frames of: Go 3; all stacks are complete; stacks without a frame: 2; ` +
	`lost: 4 in the unwinder, 5 in the kernel, 1 in 2 restarts (7.5 s without an unwinder); the unwinder used up to 100 MiB of memory and 40 MiB of kernel memory"`

// TestClosingLines requires that Check finds missing and surplus samples.
func TestClosingLines(t *testing.T) {
	b, err := ReadClosingLines("something before\n" + closingLines)
	require.NoError(t, err)
	require.Equal(t, ClosingLines{Drawn: 5000, Container: 200, Lost: 3, InUnwinder: 4, InKernel: 5, Crashed: 1, Restarts: 2, Away: 7.5}, b)
	require.NoError(t, b.Check(4800))
	require.ErrorContains(t, b.Check(4700), "5000 samples were drawn, but 4700 delivered")
	require.Error(t, b.Check(4900))
	_, err = ReadClosingLines("nothing")
	require.ErrorIs(t, err, ErrNoClosingLine)
}
