//go:build e2e

package backends

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
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
	igtest.WriteBetween(t, page, "<!-- begin "+name+" table -->\n", "<!-- end "+name+" table -->", "\n"+table+"\n")
}
