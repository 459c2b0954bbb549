package collectortest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guides returns the text of all guides. It works only in tests two folders below the top of the repository.
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

// Documented returns the YAML between the guides' markers with that name.
func Documented(t testing.TB, name string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)<!-- begin config " + regexp.QuoteMeta(name) + " -->\n+```yaml\n(.*?)```\n+<!-- end config " + regexp.QuoteMeta(name) + " -->")
	found := block.FindAllStringSubmatch(Guides(t), -1)
	require.Len(t, found, 1, "the guides must have one config %s", name)
	return found[0][1]
}
