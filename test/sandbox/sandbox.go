// Package sandbox lets tests run the unwinder in a sandbox that withholds what it asks for first and has no use for.
// In a virtual machine or on a plain host it does nothing.
package sandbox

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

// Packages are the Debian packages that Prefix may need.
const Packages = "gcc libc6-dev"

const capSysResource = 24

//go:embed src/prlimit.c
var source []byte

// Prefix returns what has to come before a command that starts the unwinder on this machine: what igrun.Prefix says,
// and, where the right to raise limits is missing, a program that it compiles into dir.
func Prefix(ctx context.Context, dir string) ([]string, error) {
	prefix := igrun.Prefix()
	may, err := mayRaiseLimits()
	if err != nil {
		return nil, fmt.Errorf("looking at what this sandbox allows: %w", err)
	}
	if may {
		return prefix, nil
	}
	path, program := filepath.Join(dir, "prlimit.c"), filepath.Join(dir, "prlimit")
	if err := os.WriteFile(path, source, 0o644); err != nil {
		return nil, fmt.Errorf("writing the sandbox's program: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "gcc", "-O1", "-Wall", "-o", program, path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the sandbox's program (Debian packages %s): %w\n%s", Packages, err, out)
	}
	return append(prefix, program), nil
}

// mayRaiseLimits says whether this process has CAP_SYS_RESOURCE.
func mayRaiseLimits() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return caps&(1<<capSysResource) != 0, err
		}
	}
	return false, fmt.Errorf("no CapEff in /proc/self/status")
}
