//go:build e2e

package names

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// TestCost measures the cost of "ig run profile_cpu" on a machine that compiles. The machine compiles C without pause, and
// always new Go programs, whose symbols are not cached. Each Go program runs for a moment. COST is the duration. COST_OLD can
// name the build folder of an older commit, which is then measured in turn with the new build.
func TestCost(t *testing.T) {
	length := 30 * time.Second
	if text := os.Getenv("COST"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	frequency := 199
	if text := os.Getenv("COST_FREQUENCY"); text != "" {
		var err error
		frequency, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	process, err := loads.Run(t.Context(), "compile", dir, 2*length+loads.DefaultLimit)
	require.NoError(t, err)
	defer process.Stop()
	defer goBuilds(t, dir)()

	type build struct{ what, ig, gadget string }
	builds := []build{{"this build", igtest.Built(t, igtest.Bin, "ig"), igtest.Built(t, igtest.Gadgets, "profile_cpu.tar")}}
	if old := os.Getenv("COST_OLD"); old != "" {
		o := build{"COST_OLD", filepath.Join(old, "bin/ig"), filepath.Join(old, "gadgets/profile_cpu.tar")}
		builds = []build{o, builds[0], builds[0], o} // the load of other programs may change slowly
	}
	for _, b := range builds {
		r := startIG(t, b.ig, b.gadget, frequency, 10*time.Second)
		r.awaitFirst(t)
		pid := r.process.Pid
		begin := igtest.CPUTime(t, pid)
		var levels []string
		for end, next := time.Now().Add(length), time.Now(); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if now := time.Now(); !now.Before(next) {
				levels = append(levels, strconv.FormatInt(igtest.Resident(pid)>>20, 10))
				next = next.Add(max(length/60, time.Second))
			}
		}
		used := igtest.CPUTime(t, pid) - begin
		rows := shares(r.receiver.Samples())
		r.cancel()
		t.Logf("%s: %.2f s of CPU in %v (%.2f s from start to end), resident %s MiB; %s; %s", b.what, used.Seconds(), length,
			r.cpu().Seconds(), strings.Join(levels, " "), rows, lastLine(r.said(t)))
	}
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// goBuilds builds and runs new Go programs until the returned function is called.
func goBuilds(t *testing.T, dir string) (stop func()) {
	t.Helper()
	dir = filepath.Join(dir, "gobuilds")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module built\n\ngo 1.21\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(`package main

import (
	"crypto/sha256"
	"net/http"
	"time"
)

var number string

func main() {
	_ = http.DefaultClient
	sum := sha256.Sum256([]byte(number))
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		sum = sha256.Sum256(sum[:])
	}
}
`), 0o600))
	cmd := exec.Command("/bin/sh", "-c", `n=0; while [ $n -lt 100000 ]; do n=$((n+1)); go build -ldflags "-X main.number=$n" -o built . && ./built; done`)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}
