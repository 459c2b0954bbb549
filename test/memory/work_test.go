//go:build e2e

package memory

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// spent is the elapsed time and the CPU time of some work.
type spent struct{ wall, cpu time.Duration }

// work is a program that repeats the same work. Its input says how often.
type work struct {
	name    string
	command []string
	calls   float64 // allocations per repetition, counted by heaptrack
	input   func(repetitions int) string
	read    func(output string) (spent, error)
	// warm is the number of repetitions before the measurement. long is the number of measured repetitions if the cost depends
	// on pauses of the probes. short is enough if every call costs the same.
	warm, long, short int
	// These are for servers. choose holds the flags that select the processes, and without the ways that do not work. serve
	// replaces input.
	choose  []string
	without []string
	serve   func(t *testing.T, server *exec.Cmd, repetitions int) spent
}

// way is a way to profile a program.
type way struct {
	name string
	env  []string
	wrap []string // before the command
	ig   []string // flags; nil: without ig
	long bool
	base string // the way to compare with
	// image names a gadget other than profile_alloc, and attached is this gadget's log line after attaching. With discard, the
	// rows are not exported.
	image, attached string
	discard         bool
}

const libraries = "/usr/lib/x86_64-linux-gnu/"

// endless removes the limit of the probes' cost.
const endless = "--max-cost=1000"

func ways(dir string) []way {
	return []way{
		{name: "alone"},
		{name: "profile_alloc", ig: []string{}, long: true, base: "alone"},
		{name: "profile_alloc, never paused", ig: []string{endless}, base: "alone"},
		{name: "profile_alloc --live", ig: []string{"--live", endless}, base: "alone"},
		{name: "heaptrack 1.4", wrap: []string{"heaptrack", "-o", dir + "/heaptrack"}, base: "alone"},
		{name: "jemalloc 5.3", env: []string{"LD_PRELOAD=" + libraries + "libjemalloc.so.2"}},
		{name: "jemalloc 5.3, prof:true,lg_prof_sample:19", env: []string{"LD_PRELOAD=" + libraries + "libjemalloc.so.2", "MALLOC_CONF=prof:true,lg_prof_sample:19"}, base: "jemalloc 5.3"},
		{name: "gperftools 2.10", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4"}},
		{name: "gperftools 2.10, TCMALLOC_SAMPLE_PARAMETER=524288", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4", "TCMALLOC_SAMPLE_PARAMETER=524288"}, base: "gperftools 2.10"},
		{name: "gperftools 2.10, HEAPPROFILE", env: []string{"LD_PRELOAD=" + libraries + "libtcmalloc.so.4", "HEAPPROFILE=" + dir + "/heap"}, base: "gperftools 2.10"},
	}
}

// clocks matches the lines of the program pairs in an output that also contains a tool's lines.
var clocks = regexp.MustCompile(`(?m)^\d+ \d+$`)

func compilePairs(t *testing.T, program string) {
	t.Helper()
	igtest.Output(t, "gcc", "-O2", "-fomit-frame-pointer", "-Wall", "-Werror", "-o", program, source("pairs.c"))
}

// pairs returns a program that makes a million allocations a second.
func pairs(t *testing.T) work {
	t.Helper()
	program, ok := igtest.Prebuilt("pairs")
	if !ok {
		program = filepath.Join(t.TempDir(), "pairs")
		compilePairs(t, program)
	}
	w := work{
		name: "a million calls of `malloc` and `free` per second", calls: 1e5, warm: 30, long: 200, short: 10,
		input: func(n int) string { return fmt.Sprintln(n * 1e5) },
		read: func(output string) (s spent, err error) {
			found := clocks.FindAllStringSubmatch(output, -1)
			if len(found) == 0 {
				return s, fmt.Errorf("no times in %q", output)
			}
			_, err = fmt.Sscan(found[len(found)-1][0], &s.wall, &s.cpu)
			return s, err
		},
	}
	// With this much work between two allocations, the program makes a million allocations a second.
	rounds := 500.0
	for range 5 {
		w.command = []string{program, strconv.Itoa(int(rounds))}
		rounds *= 0.1 / w.run(t, way{}, 10).cpu.Seconds()
	}
	return w
}

var timer = regexp.MustCompile(`Run Time: real (\S+) user (\S+) sys (\S+)`)

// sqlite uses an in-memory database.
func sqlite(t *testing.T) work {
	t.Helper()
	text, err := os.ReadFile(source("work.sql"))
	require.NoError(t, err)
	return work{
		name: "sqlite3 with a database in memory", calls: 5.87e5, warm: 40, long: 150, short: 1,
		command: []string{"sqlite3", ":memory:"},
		input:   func(n int) string { return ".timer on\n" + strings.Repeat(string(text), n) + ".print measured\n" },
		read: func(output string) (s spent, err error) {
			parts := strings.Split(output, "measured\n") // setup, measured part, and end
			if len(parts) != 3 {
				return s, fmt.Errorf("no times in %q", output)
			}
			for _, found := range timer.FindAllStringSubmatch(parts[1], -1) {
				var all [3]float64
				for i := range all {
					if all[i], err = strconv.ParseFloat(found[i+1], 64); err != nil {
						return s, err
					}
				}
				s.wall += time.Duration(all[0] * 1e9)
				s.cpu += time.Duration((all[1] + all[2]) * 1e9)
			}
			return s, nil
		},
	}
}

// begin starts the program, which waits for its input.
func (w work) begin(t *testing.T, how way) (cmd *exec.Cmd, in io.WriteCloser, out *bytes.Buffer) {
	t.Helper()
	argv := slices.Concat(how.wrap, w.command)
	cmd = exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), how.env...)
	out = &bytes.Buffer{}
	cmd.Stdout = out
	// The scheduler first divides CPU time between sessions.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	prefer(t, cmd.Process.Pid)
	if w.serve != nil {
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	return cmd, in, out
}

// prefer gives a process's session priority over all others, because the scheduler first divides CPU time between sessions. If
// the program had only part of a CPU, it would slow down by more than the tool's CPU time.
func prefer(t *testing.T, pid int) {
	t.Helper()
	if !*costFlag {
		return
	}
	file := fmt.Sprintf("/proc/%d/autogroup", pid)
	before, err := os.ReadFile(file)
	if err != nil {
		return // the kernel has no autogroups
	}
	require.NoError(t, os.WriteFile(file, []byte("-20"), 0))
	if pid == os.Getpid() {
		_, nice, _ := strings.Cut(strings.TrimSpace(string(before)), " nice ")
		t.Cleanup(func() { require.NoError(t, os.WriteFile(file, []byte(nice), 0)) })
	}
}

// end lets the program do its work, and returns the time of one repetition.
func (w work) end(t *testing.T, cmd *exec.Cmd, in io.WriteCloser, out *bytes.Buffer, warm, n int) spent {
	t.Helper()
	if w.serve != nil {
		w.serve(t, cmd, warm)
		s := w.serve(t, cmd, n)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), "%s", out)
		return spent{s.wall / time.Duration(n), s.cpu / time.Duration(n)}
	}
	_, err := io.WriteString(in, w.input(warm)+w.input(n))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), "%s", out)
	s, err := w.read(out.String())
	require.NoError(t, err, "%s", out)
	return spent{s.wall / time.Duration(n), s.cpu / time.Duration(n)}
}

func (w work) run(t *testing.T, how way, n int) spent {
	t.Helper()
	cmd, in, out := w.begin(t, how)
	return w.end(t, cmd, in, out, 1, n)
}
