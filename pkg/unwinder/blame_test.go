package unwinder

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// The list of avoided processes must be limited. The newest replace the oldest.
func TestAvoidedAreTheNewest(t *testing.T) {
	var a avoid
	for n := range maxAvoided + 2 {
		a = a.with(strconv.Itoa(n))
	}
	require.Len(t, a, maxAvoided)
	require.Equal(t, "2", a[0])
	require.Equal(t, strconv.Itoa(maxAvoided+1), a[maxAvoided-1])

	var files runs
	for range 2 {
		for n := range int64(maxAvoided + 2) {
			files.blame(symtab.FileID{Size: n})
		}
		require.Len(t, files.suspects, maxAvoided)
		require.EqualValues(t, maxAvoided+1, files.suspects[maxAvoided-1].Size)
	}
}
