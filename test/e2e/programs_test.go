//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// compileC compiles a program with frame pointers, which the kernel needs to walk its stacks.
func compileC(t *testing.T, source string) string {
	t.Helper()
	return igtest.Compile(t, source, "clang", "-O0", "-fno-omit-frame-pointer")
}

// compileAsShipped compiles a program as distributions do, without frame pointers.
func compileAsShipped(t *testing.T, source string) string {
	t.Helper()
	return igtest.Compile(t, source, "gcc", "-O2", "-fomit-frame-pointer")
}

func compileGo(t *testing.T, pkg, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", program, pkg)
	return program
}

func start(t *testing.T, program string, args ...string) *igtest.Program {
	t.Helper()
	return igtest.StartProgram(t, exec.Command(program, args...))
}
