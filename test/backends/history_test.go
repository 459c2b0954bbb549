//go:build e2e

package backends

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
)

var historyFlag = flag.Bool("history", false, "measure a history beside Pyroscope")

// TestHistoryBesidePyroscope writes an hour of data from 16 busy CPUs to a history and to Pyroscope, and queries it from both.
// Both must return the whole hour. The costs are logged.
func TestHistoryBesidePyroscope(t *testing.T) {
	if !*historyFlag {
		t.Skip("-history measures")
	}
	const interval, period = 10 * time.Second, 20_408_163
	dir := filepath.Join(t.TempDir(), "history")
	w, err := history.New(dir, config.Retention{MaxBytes: 1 << 30}, func(err error) { t.Error(err) })
	require.NoError(t, err)
	p := startPyroscope(t, "-validation.reject-older-than=0", "-distributor.ingestion-rate-limit-mb=1000", "-distributor.ingestion-burst-size-mb=1000")
	server := p.cmd

	var services []string
	for i := range 20 {
		services = append(services, fmt.Sprint("service-", i))
	}
	busy := workload.New(t, "profile_cpu", services...)
	began := time.Now().Add(-time.Hour).Truncate(time.Minute)
	writing, rows, idle := time.Duration(0), int64(0), igtest.CPUTime(t, server.Process.Pid)
	for i := range int(time.Hour / interval) {
		from := began.Add(time.Duration(i) * interval)
		busy.Sample(16 * 49 * 10)
		for _, m := range busy.Flush(from, from.Add(interval)) {
			before := ownCPU(t)
			require.Equal(t, attempt.Accepted, w.Send(t.Context(), m).Verdict)
			writing += ownCPU(t) - before
			rows += m.Rows
			resp, err := http.Post("http://"+p.address+"/v1development/profiles", "application/x-protobuf", bytes.NewReader(m.Body))
			require.NoError(t, err)
			text, _ := io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
		}
	}
	require.NoError(t, w.Close())
	storing := igtest.CPUTime(t, server.Process.Pid) - idle

	ask := exec.CommandContext(t.Context(), igtest.Built(t, igtest.Bin, "profile"), "history", "--from", dir, "--at", began.Format("2006-01-02 15:04"), "--for", "1h", "-o", filepath.Join(t.TempDir(), "answer"))
	asked := time.Now()
	said, err := ask.CombinedOutput()
	require.NoError(t, err, "%s", said)
	command := time.Since(asked)
	asked, before := time.Now(), ownCPU(t)
	a, err := history.Read(dir, history.Query{From: began, To: began.Add(time.Hour)})
	require.NoError(t, err)
	read, readCPU := time.Since(asked), ownCPU(t)-before
	require.Equal(t, rows, a.Summary.Rows)
	value := int64(0)
	for _, s := range a.Summary.Sums {
		value += s.Value
	}
	require.Equal(t, rows, value)
	stats := ask.ProcessState

	in := span{began, began.Add(time.Hour)}
	merged := func() (time.Duration, time.Duration) {
		asked, before := time.Now(), igtest.CPUTime(t, server.Process.Pid)
		require.Equal(t, rows*period, total(p.query(t, "{}", in)))
		return time.Since(asked), igtest.CPUTime(t, server.Process.Pid) - before
	}
	first, firstCPU := merged()
	again, againCPU := merged()

	require.NoError(t, server.Process.Signal(syscall.SIGTERM)) // it then writes its memory to disk
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	select {
	case err := <-ended:
		t.Log("Pyroscope ended: ", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("Pyroscope does not end")
	}
	p.cmd = nil
	whole := server.ProcessState
	t.Logf("history: %d bytes on disk; writing took %s of CPU time; read in %s, CPU %s; with table, page and pprof in %s, CPU %s, %d MiB",
		size(t, dir), writing, read, readCPU, command, stats.UserTime()+stats.SystemTime(), stats.SysUsage().(*syscall.Rusage).Maxrss>>10)
	t.Logf("Pyroscope %s: %d bytes on disk; storing took %s of CPU time, %s with start and end; a merged profile in %s, CPU %s, and again in %s, CPU %s; %d MiB",
		p.version(), size(t, filepath.Join(filepath.Dir(p.storage), "data")), storing, whole.UserTime()+whole.SystemTime(), first, firstCPU, again, againCPU, whole.SysUsage().(*syscall.Rusage).Maxrss>>10)
}

// TestHistoryBesideNone runs profile_cpu three times on a machine that compiles: without an exporter, with a history, and with
// Pyroscope. Two CPUs at 392 samples a second make as many samples as 16 at the default rate. The costs of ig are logged.
func TestHistoryBesideNone(t *testing.T) {
	if !*historyFlag {
		t.Skip("-history measures")
	}
	igtest.NeedRoot(t)
	image, p := igtest.Import(t, "profile_cpu"), startPyroscope(t)
	dir := filepath.Join(t.TempDir(), "history")
	settings := writeFile(t, "config.yaml", "operator:\n  otel-profiles:\n    exporters:\n      history: {preset: history, path: "+dir+"}\n"+
		"      pyroscope: {preset: pyroscope, endpoint: \"http://"+p.address+"\"}\n")
	for _, exporter := range []string{"", "history", "pyroscope"} {
		args := append([]string{"--config", settings, "run", image}, igrun.GadgetFlags()...)
		args = append(args, "--unwind=frame-pointers", "--frequency="+fmt.Sprint(16*49/runtime.NumCPU()), "--output=none")
		if exporter != "" {
			args = append(args, "--otel-profiles-exporter="+exporter)
		}
		load := exec.CommandContext(t.Context(), "nice", "go", "build", "-a", "-o", os.DevNull, "../../cmd/profile")
		load.Env = append(os.Environ(), "GOCACHE="+t.TempDir())
		load.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		require.NoError(t, load.Start())
		cmd := igrun.Command(t.Context(), igtest.Built(t, igtest.Bin, "ig"), args...)
		said := &igtest.Buffer{}
		cmd.Stdout, cmd.Stderr = said, said
		require.NoError(t, cmd.Start())
		time.Sleep(20 * time.Second)
		before := igtest.CPUTime(t, cmd.Process.Pid)
		time.Sleep(time.Minute)
		took, resident := igtest.CPUTime(t, cmd.Process.Pid)-before, igtest.Resident(cmd.Process.Pid)
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, cmd.Wait(), "%s", said)
		_ = syscall.Kill(-load.Process.Pid, syscall.SIGKILL)
		_ = load.Wait()
		t.Logf("exporter %q: ig took %s of CPU time a minute, and holds %d MiB", exporter, took, resident>>20)
	}
	list, err := history.List(dir)
	require.NoError(t, err)
	all := history.Total(list)
	require.Positive(t, all.Rows)
	t.Logf("the history has %d rows, Pyroscope %d s", all.Rows, time.Duration(total(p.query(t, "{}", span{time.Now().Add(-time.Hour), time.Now()})))/time.Second)
}

func ownCPU(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// size returns the bytes of a folder's files.
func size(t *testing.T, dir string) (n int64) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		n += info.Size()
		return nil
	}))
	_, err := os.Stat(dir)
	require.NoError(t, err)
	return n
}
