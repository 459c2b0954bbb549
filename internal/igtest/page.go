package igtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// WriteBetween replaces the text between two markers on a page.
func WriteBetween(t *testing.T, path, begin, end, text string) {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok, "%s has no %q", path, begin)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no %q", path, end)
	require.NoError(t, os.WriteFile(path, []byte(before+begin+text+end+after), 0o644))
}
