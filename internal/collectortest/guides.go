package collectortest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guides returns the text of all guides. It is for tests in folders two below the top.
func Guides(t testing.TB) string {
	t.Helper()
	files, err := filepath.Glob("../../docs/guides/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

// Documented returns the YAML that stands between the markers of that name in the guides.
func Documented(t testing.TB, name string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)<!-- begin config " + regexp.QuoteMeta(name) + " -->\n+```yaml\n(.*?)```\n+<!-- end config " + regexp.QuoteMeta(name) + " -->")
	found := block.FindAllStringSubmatch(Guides(t), -1)
	require.Len(t, found, 1, "the guides must have one config %s", name)
	return found[0][1]
}
