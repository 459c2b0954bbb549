package fieldmap

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadme checks that the tests which the README names are there.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "../stack/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			code.Write(b)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)(?:/([^`]+))?`").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, code.String(), "func "+name[1]+"(")
		if name[2] != "" {
			require.Contains(t, code.String(), `"`+name[2]+`",`, name[2])
		}
	}
}
