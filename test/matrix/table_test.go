//go:build e2e

package matrix

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
)

// write writes the matrix as Markdown.
func write(t *testing.T, presets []string, matrix map[string]map[string]*cell) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "| gadget | %s |\n|---|%s\n", strings.Join(presets, " | "), strings.Repeat("---|", len(presets)))
	for _, g := range all() {
		if matrix[g.name] == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s |", g.name)
		for _, preset := range presets {
			c := matrix[g.name][preset]
			fmt.Fprintf(&b, " %s |", c.text())
		}
		b.WriteString("\n")
	}
	b.WriteString("\nEach line is a run with an exporter for each preset: the requests under that preset, in the layout that it writes, against the\n" +
		"rules of the protocol and of that receiver.\n\n")
	for _, g := range all() {
		if matrix[g.name] == nil {
			fmt.Fprintf(&b, "Not run here: %s.\n", g.name)
		}
	}
	b.WriteString("\n## Pyroscope\n\n| gadget | profile type | series | labels |\n|---|---|---|---|\n")
	for _, g := range all() {
		cells := matrix[g.name]
		if cells == nil {
			continue
		}
		types, labels := map[string]bool{}, map[string]bool{}
		for _, s := range cells[backends.Pyroscope].series {
			types[s.Type] = true
			for name := range s.Labels {
				labels[name] = true
			}
		}
		fmt.Fprintf(&b, "| %s | `%s` | %d | %s |\n", g.name, strings.Join(slices.Sorted(maps.Keys(types)), "`, `"),
			len(cells[backends.Pyroscope].series), strings.Join(slices.Sorted(maps.Keys(labels)), ", "))
	}
	b.WriteString("\nThe machine of this run has no containers that Inspektor Gadget sees: the host is one series. An hour of a node with\n" +
		"60 containers of 20 thread names each makes 60 series, and 1,200 with `thread.name=sample` (TestBusyNode).\n")
	file := filepath.Join(filepath.Dir(filepath.Clean(os.Getenv("E2E_GADGETS"))), "matrix.md")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	t.Logf("%s:\n%s", file, b.String())
}

func (c *cell) text() string {
	what := fmt.Sprintf("%d samples", len(c.samples))
	if c.hashed > 0 {
		what += fmt.Sprintf(", %d of %d locations with htlhash, %d of Go", c.hashed, c.locations, c.golang)
	}
	if len(c.broken) == 0 {
		return "clean: " + what
	}
	return "refused (" + strings.Join(slices.Sorted(maps.Keys(c.broken)), ", ") + "): " + what
}
