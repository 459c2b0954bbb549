package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program unwinder parses workloads' files without rights. In a daemon and in the command profile, no package of this
// project imports a parser. This includes this project's parser and the standard library's. (Inspektor Gadget and cilium/ebpf
// import debug/elf, for gadgets.)
func TestNothingOfAWorkloadIsParsed(t *testing.T) {
	const module = "github.com/ig-otel-profiles/ig-otel-profiles/"
	parsers := []string{module + "pkg/symbols/parse", "debug/elf", "debug/dwarf", "debug/gosym", "golang.org/x/arch/x86/x86asm", "github.com/therootcompany/xz"}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, module+"cmd/ig", module+"cmd/gadgettracermanager", module+"cmd/profile", module+"operators/...").Output()
	require.NoError(t, err)
	seen := 0
	for line := range strings.Lines(string(out)) {
		packages := strings.Fields(line)
		if !strings.HasPrefix(packages[0], module) {
			continue
		}
		seen++
		for _, imported := range packages[1:] {
			require.False(t, slices.Contains(parsers, imported), "%s imports %s", packages[0], imported)
		}
	}
	require.Greater(t, seen, 20)
}
