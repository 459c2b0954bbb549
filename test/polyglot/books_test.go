package polyglot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const aClosingLine = `msg="unwinder: 100 samples taken, 60 handed on, 20 filtered out, 9 left out for a lower frequency, 1 of a container that had gone, ` +
	`2 without a stack, lost: 3 here, 4 in the unwinder, 5 in the kernel, 1 in 2 restarts (7.5 s without samples); samples with frames of: Go 3"`

// A sample that is missing, or one too many, is found.
func TestBooks(t *testing.T) {
	b, err := ReadBooks("something before\n" + aClosingLine)
	require.NoError(t, err)
	require.Equal(t, Books{100, 60, 20, 9, 1, 2, 3, 4, 5, 1, 2, 7.5}, b)
	require.EqualValues(t, 16, b.Dropped())
	require.NoError(t, b.Check(60))
	require.ErrorContains(t, b.Check(59), "60 samples were handed on, and 59 delivered")
	for _, n := range []*int64{&b.HandedOn, &b.Filtered, &b.LeftOut, &b.Container, &b.NoStack, &b.Here, &b.InUnwinder, &b.Crashed} {
		*n--
		require.ErrorContains(t, b.Check(b.HandedOn), "100 samples were taken, and 99 are in the books")
		*n++
	}
	_, err = ReadBooks("nothing")
	require.ErrorIs(t, err, ErrNoClosingLine)
}
