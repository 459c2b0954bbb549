//go:build e2e

package polyglot

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// TestUnseen runs programs that the unwinder cannot unwind: Debian's Erlang, and a program with its own .NET and another name.
// After a minute, the log names both, with their numbers of samples.
func TestUnseen(t *testing.T) {
	programs := buildLoads(t, find(t, "beam-stripped", "dotnet"))
	bringAlong(t, programs[1])
	running := startAll(t, programs)
	r := startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole", "--frequency=99")
	told := func(language string) int64 {
		said := regexp.MustCompile(`(\d+) samples of processes that run ` + regexp.QuoteMeta(language) + ` have no frames of that language, so `).FindStringSubmatch(r.log.String())
		if said == nil {
			return 0
		}
		n, err := strconv.ParseInt(said[1], 10, 64)
		require.NoError(t, err)
		return n
	}
	for i, language := range []string{"BEAM", ".NET"} {
		require.True(t, r.wait(language+" in the log", 3*time.Minute, func() bool { return told(language) > 0 }), "the log does not name %s", language)
		arrived := r.counted(running[i].PID, time.Time{})
		t.Logf("%s: the log has %d samples, when %d of the program had arrived", language, told(language), arrived)
		require.Greater(t, told(language), arrived/2, "%s: number of samples", language)
	}
	r.stop()
}

// bringAlong puts a .NET program with another name into a folder with the runtime, as "dotnet publish --self-contained" does.
func bringAlong(t *testing.T, p *loads.Program) {
	t.Helper()
	own, program, runtime := filepath.Join(p.Dir, "own"), "shop", p.Args[1]
	require.NoError(t, os.Rename(runtime, own))
	require.NoError(t, os.Rename(p.Args[0], filepath.Join(own, program)))
	p.Args[0], p.Args[1] = filepath.Join(own, program), own
}
