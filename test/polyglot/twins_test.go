//go:build e2e

package polyglot

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// TestTwins runs a program after a modified copy with the same name, size, head and tail. The copy has other function names and
// no unwind rules. Each must have its own names, and the program's stacks must be whole.
func TestTwins(t *testing.T) {
	igtest.NeedRoot(t)
	load, err := loads.Find("c")
	require.NoError(t, err)
	// A static program has so many names that they are not all in its tail.
	dir := t.TempDir()
	path := filepath.Join(dir, "service")
	igtest.Output(t, "gcc", "-O2", "-static", "-fomit-frame-pointer", "-o", path, "../loads/src/load.c")
	service := &loads.Program{Load: load, Dir: dir, Args: []string{path}, Binary: path, Unstripped: path}
	twin := &loads.Program{Load: load, Dir: filepath.Join(dir, "twin"), Args: []string{filepath.Join(dir, "twin/service")}}
	require.NoError(t, os.Mkdir(twin.Dir, 0o755))
	makeTwin(t, path, twin.Args[0])

	run := startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole", "--frequency="+frequency)
	require.True(t, run.wait("the first samples", patience, func() bool { return run.receiver.Stats().Samples > 0 }))
	runs := func(p *loads.Program) int {
		process, err := p.Start(t.Context(), loads.DefaultLimit)
		require.NoError(t, err)
		t.Cleanup(func() { process.Stop() })
		require.True(t, run.wait("samples of the program", longest, func() bool { return run.counted(process.PID, time.Time{}) > minSamples }))
		return process.PID
	}
	first := runs(twin)
	second := runs(service)
	by := ofProcess(run.stop())

	j, err := newJudge(service, path)
	require.NoError(t, err)
	v := j.judge(by[second])
	t.Logf("%d samples, complete %.1f %%, named %.1f %%; not complete ends in %s", v.samples, percent(v.complete, v.samples), percent(v.named, v.samples), most(v.outermost))
	require.GreaterOrEqual(t, percent(v.complete, v.samples), 98.0)
	require.GreaterOrEqual(t, percent(v.named, v.samples), 98.0)
	for _, name := range []string{"hoard", "lurks"} {
		require.Empty(t, igtest.Through(by[second], name), "names of the twin in the service")
	}
	for _, name := range []string{"heavy", "light"} {
		require.Empty(t, igtest.Through(by[first], name), "names of the service in the twin")
	}
	require.NotEmpty(t, igtest.Through(by[first], "hoard"), "the twin's own names")
}

// makeTwin copies a program, with other names and rules. Only the part between its first and its last 4 KiB differs.
func makeTwin(t *testing.T, path, to string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(content))
	require.NoError(t, err)
	twin := bytes.Clone(content)
	part := func(name string) []byte {
		s := f.Section(name)
		require.NotNil(t, s, name)
		return twin[s.Offset:][:s.Size]
	}
	names := part(".strtab")
	for from, to := range map[string]string{"\x00heavy\x00": "\x00hoard\x00", "\x00light\x00": "\x00lurks\x00"} {
		before, _, found := bytes.Cut(names, []byte(from))
		require.True(t, found, from)
		copy(names[len(before):], to)
	}
	clear(part(".eh_frame"))
	require.Equal(t, content[:4096], twin[:4096])
	require.Equal(t, content[len(content)-4096:], twin[len(twin)-4096:])
	require.NoError(t, os.WriteFile(to, twin, 0o755))
}
