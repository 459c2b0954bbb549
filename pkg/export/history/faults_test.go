package history_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// writesTo is an environment variable. It makes the test binary write a history into the folder that it names.
const writesTo = "HISTORY_TEST_WRITES_TO"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writesTo); dir != "" {
		write(dir)
	}
	os.Exit(m.Run())
}

// write writes intervals until it is killed. It prints the number of rows of each accepted interval.
func write(dir string) {
	w := workload.New(new(testing.T), "profile_cpu", "shop", "db")
	to, err := history.New(dir, limit, func(err error) { fmt.Fprintln(os.Stderr, err) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		w.Sample(perKill)
		now := time.Now()
		for _, m := range w.Flush(now.Add(-10*time.Second), now) {
			if to.Send(context.Background(), m).Verdict != attempt.Accepted {
				os.Exit(1)
			}
			fmt.Println(m.Rows)
		}
	}
}

// perKill is the number of rows in an interval.
const perKill = 200

// TestKills kills the writer 50 times at random moments. Each kill must lose at most the current interval.
func TestKills(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	began := time.Now()
	taken := int64(0)
	const kills = 50
	for range kills {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), writesTo+"="+dir), os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := rand.N(20); lines.Scan(); n-- {
			rows := int64(0)
			_, err := fmt.Sscan(lines.Text(), &rows)
			require.NoError(t, err)
			taken += rows
			if n == 0 {
				time.AfterFunc(rand.N(2*time.Millisecond), func() { _ = cmd.Process.Kill() })
			}
		}
		require.ErrorContains(t, cmd.Wait(), "killed")
	}
	a := read(t, dir, history.Query{From: began.Add(-time.Minute)})
	require.GreaterOrEqual(t, a.Summary.Rows, taken, "what was taken is there")
	require.LessOrEqual(t, a.Summary.Rows, taken+kills*perKill)
	value := int64(0)
	for _, s := range a.Summary.Sums {
		value += s.Value
	}
	require.Equal(t, a.Summary.Rows, value)
	for _, d := range a.Damaged {
		require.ErrorContains(t, d, "incomplete")
	}
}

// TestTornWrite cuts a write at every byte. It must lose only its own record, and the next writer must continue.
func TestTornWrite(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_cpu", "shop")
	rows := m.interval(w, 20)
	file := segmentFiles(t, m.dir)[0]
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	m.interval(w, 20)
	torn, err := os.ReadFile(file)
	require.NoError(t, err)
	after := &machine{t: t, dir: filepath.Join(t.TempDir(), "after"), now: m.now}
	file = filepath.Join(after.dir, filepath.Base(file))
	require.NoError(t, os.Mkdir(after.dir, 0o700))
	for cut := len(torn) - 1; cut > len(whole); cut-- {
		require.NoError(t, os.WriteFile(file, torn[:cut], 0o600))
		a, err := history.Read(after.dir, history.Query{From: noon})
		require.NoError(t, err)
		require.Equal(t, rows, a.Summary.Rows)
		require.Empty(t, a.Damaged, "a writer can still be writing")
		require.NoError(t, os.Chtimes(file, noon, noon))
		a, err = history.Read(after.dir, history.Query{From: noon})
		require.NoError(t, err)
		require.Equal(t, rows, a.Summary.Rows, "torn at byte %d of %d", cut-len(whole), len(torn)-len(whole))
		require.Len(t, a.Damaged, 1)
		require.ErrorContains(t, a.Damaged[0], "incomplete")
	}
	after.start(limit)
	rows += after.interval(w, 20)
	require.NoError(t, after.w.Close())
	require.Equal(t, rows, read(t, after.dir, history.Query{From: noon}).Summary.Rows)
}

// A full disk prevents writes, but must not damage earlier data.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("mounting a small disk: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	m := &machine{t: t, dir: filepath.Join(disk, "history"), now: noon}
	m.start(limit)
	w := workload.New(t, "profile_cpu", "shop")
	rows := m.interval(w, 100)

	filler := filepath.Join(disk, "filler")
	require.NoError(t, os.WriteFile(filler, make([]byte, 100<<10), 0o600))
	var refused []wire.Message
	for len(refused) < 3 { // the exporter retries, and sends other requests in between
		from := m.now
		m.pass(10 * time.Second)
		w.Sample(100)
		for _, msg := range w.Flush(from, m.now) {
			switch out := m.w.Send(t.Context(), msg); out.Verdict {
			case attempt.Accepted:
				rows += msg.Rows
			default:
				require.Equal(t, attempt.Retryable, out.Verdict)
				require.Contains(t, out.What, "no space left")
				refused = append(refused, msg)
			}
		}
	}
	require.Equal(t, rows, read(t, m.dir, history.Query{From: noon}).Summary.Rows)
	require.NoError(t, os.Remove(filler))
	for _, msg := range refused {
		require.Equal(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
		rows += msg.Rows
	}
	rows += m.interval(w, 100)
	a := read(t, m.dir, history.Query{From: noon})
	require.Equal(t, rows, a.Summary.Rows)
	require.Len(t, a.Summary.Sums, 1)
	require.Equal(t, rows, a.Summary.Sums[0].Value)
	require.Empty(t, a.Damaged)
	require.NoError(t, m.w.Close())
}
