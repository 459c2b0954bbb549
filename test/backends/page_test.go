//go:build e2e

package backends

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
)

const page = "../../docs/develop/testing/backends.md"

var pageFlag = flag.Bool("page", false, "write the tables into docs/develop/testing/backends.md")

// exporter returns the documented settings of an exporter with another name and address.
func exporter(t *testing.T, block, from, name, endpoint string) string {
	t.Helper()
	const head = "operator:\n  otel-profiles:\n    exporters:\n"
	text, ok := strings.CutPrefix(collectortest.Documented(t, block), head)
	require.True(t, ok, "%s does not begin like a configuration", block)
	line := regexp.MustCompile(`(?m)^( +endpoint): .*$`)
	require.Len(t, line.FindAllString(text, -1), 1)
	text = line.ReplaceAllString(text, "$1: http://"+endpoint)
	renamed := strings.Replace(text, "      "+from+":\n", "      "+name+":\n", 1)
	require.Contains(t, renamed, name+":\n")
	return renamed
}

// writeTable writes a table between the page's markers with that name, if this was requested and the test has not failed.
func writeTable(t *testing.T, name, table string) {
	t.Helper()
	if !*pageFlag || t.Failed() {
		return
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	marked := regexp.MustCompile(`(?s)(<!-- begin ` + name + ` table -->\n).*?(<!-- end ` + name + ` table -->)`)
	require.True(t, marked.Match(text), "the page has no markers for the table %s", name)
	text = marked.ReplaceAll(text, []byte("${1}\n"+strings.ReplaceAll(table, "$", "$$")+"\n${2}"))
	require.NoError(t, os.WriteFile(page, text, 0o644))
}
