package export

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever meets a reason in a metric must find it explained.
func TestReadmeHasEveryReason(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, r := range Reasons() {
		require.Equal(t, 1, strings.Count(string(readme), "\n| `"+string(r)+"` |"), r)
	}
}
