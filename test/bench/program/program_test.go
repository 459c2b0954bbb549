//go:build e2e

// Package program measures the CPU time of the whole ig command while it profiles this machine, with three operators: this
// project's, Inspektor Gadget's own, and none.
package program

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

var (
	table   = flag.String("table", "", "measure, and write the table to this file")
	before  = flag.String("before", "", "another build's folder `build`, to measure as well with its own profile_cpu")
	rounds  = flag.Int("rounds", 3, "rounds; the least of each counts")
	seconds = flag.Int("seconds", 15, "how long each run is measured")
)

// stock is the operator's package in an ig that has Inspektor Gadget's own operator.
const stock = `package otelprofiles

import (
	"context"
	"time"

	instancemanager "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/instance-manager"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/store"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/otel-profiles"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime"
)

func Registered() error { return nil }

func Failed() error { return nil }

func Serve(_ context.Context, _ time.Duration, run func() error) error { return run() }

func NewInstanceManager(r runtime.Runtime) (*instancemanager.Manager, error) { return instancemanager.New(r) }

func NewStore(s store.Store, _ *instancemanager.Manager) store.Store { return s }
`

// buildStock builds our ig, but replaces the operator's package.
func buildStock(t *testing.T, root string) string {
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(root, "operators", "otel-profiles", "*.go"))
	require.NoError(t, err)
	replace := map[string]string{}
	for _, f := range files {
		replace[f] = "" // as if it did not exist
	}
	source := filepath.Join(dir, "stock.go")
	require.NoError(t, os.WriteFile(source, []byte(stock), 0o600))
	replace[filepath.Join(root, "operators", "otel-profiles", "operator.go")] = source
	overlay := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, b, 0o600))
	binary := filepath.Join(dir, "ig")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-overlay", overlay, "-o", binary, "./cmd/ig")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// load keeps this machine busy until stop is called.
type load struct {
	name  string
	start func(t *testing.T) (stop func())
}

// loads are a server with recurring stacks, a compiler with short-lived processes and constantly new stacks, and processes that
// run for a millisecond each.
func loads(root string) []load {
	return []load{
		{"one program with 2,048 stacks", func(t *testing.T) func() {
			server := filepath.Join(t.TempDir(), "server")
			cmd := exec.Command("go", "build", "-buildvcs=false", "-o", server, "./test/bench/program/server")
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			run := exec.Command(server)
			stdin, err := run.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, run.Start())
			return func() {
				require.NoError(t, stdin.Close())
				_ = run.Wait()
			}
		}},
		{"Go's standard library being compiled on all CPUs", func(t *testing.T) func() {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					cmd := exec.CommandContext(ctx, "go", "build", "-a", "std")
					cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0", "GOCACHE="+t.TempDir())
					cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
					cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
					cmd.WaitDelay = 10 * time.Second
					_ = cmd.Run()
				}
			}()
			return func() {
				cancel()
				<-done
			}
		}},
		{"processes of a millisecond", func(t *testing.T) func() {
			run := exec.Command("sh", "-c", "while :; do /bin/true; done")
			run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			require.NoError(t, run.Start())
			return func() {
				require.NoError(t, run.Process.Kill())
				_ = run.Wait()
			}
		}},
	}
}

func TestProgram(t *testing.T) {
	if *table == "" {
		t.Skip("it only measures with -table FILE: run make bench")
	}
	bin, err := filepath.Abs(os.Getenv("E2E_BIN"))
	require.NoError(t, err)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"operator: {otel-profiles: {exporters: {x: {exporter: otlp-grpc, endpoint: %q, insecure: true, compression: gzip}}}}", recvtest.StartRaw(t)), 0o600))
	const gadget = "profile_cpu"
	ours := igtest.Import(t, gadget)
	variants := []struct {
		name, ig, image string
		flags           []string
	}{
		{"no exporter", filepath.Join(bin, "ig"), ours, nil},
		{"this operator", filepath.Join(bin, "ig"), ours, []string{"--otel-profiles-exporter=x"}},
		{"this operator, --format-stacks=true", filepath.Join(bin, "ig"), ours, []string{"--otel-profiles-exporter=x", "--format-stacks=true"}},
		{"Inspektor Gadget's operator", buildStock(t, root), ours, []string{"--otel-profiles-exporter=x"}},
	}
	if *before != "" {
		ig := filepath.Join(*before, "bin", "ig")
		// Its image gets a different name, because ig stores one image per name.
		out := igtest.Output(t, ig, "image", "import", filepath.Join(*before, "gadgets", gadget+".tar"))
		imported := regexp.MustCompile(gadget + `:[\w.-]+`).FindString(out)
		require.NotEmpty(t, imported, out)
		igtest.Output(t, ig, "image", "tag", imported, gadget+":before")
		igtest.Import(t, gadget)
		last := variants[len(variants)-1]
		last.name, last.ig, last.image = "the other build", ig, gadget+":before"
		variants = append(variants, last)
	}
	// run returns a running gadget's CPU time, without startup and shutdown.
	run := func(ig, image string, hz int, flags []string) time.Duration {
		const start = 6 * time.Second
		length := time.Duration(*seconds) * time.Second
		args := append([]string{"run", image, "--config", config, "--frequency", fmt.Sprint(hz), "--unwind=frame-pointers",
			"--timeout", fmt.Sprint(int((start + length).Seconds()) + 3), "-o", "none"}, igrun.GadgetFlags()...)
		ctx, cancel := context.WithTimeout(t.Context(), length+time.Minute)
		defer cancel()
		var out bytes.Buffer
		c := igrun.Command(ctx, ig, append(args, flags...)...)
		c.Stdout, c.Stderr = &out, &out
		require.NoError(t, c.Start())
		time.Sleep(start)
		before := igtest.ScheduledTime(t, c.Process.Pid)
		time.Sleep(length)
		after := igtest.ScheduledTime(t, c.Process.Pid)
		require.NoError(t, c.Wait(), out.String())
		return after - before
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CPU of the whole `ig run profile_cpu` on this machine, without its start and end, in percent of one CPU.\n\n| load | samples per second and CPU |")
	for _, v := range variants {
		fmt.Fprintf(&b, " %s |", v.name)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(variants)))
	for _, l := range loads(root) {
		stop := l.start(t)
		for _, hz := range []int{49, 999} {
			least := make([]time.Duration, len(variants))
			for range *rounds {
				for i, v := range variants {
					spent := run(v.ig, v.image, hz, v.flags)
					if least[i] == 0 || spent < least[i] {
						least[i] = spent
					}
				}
			}
			fmt.Fprintf(&b, "| %s | %d |", l.name, hz)
			for _, d := range least {
				fmt.Fprintf(&b, " %.2f |", 100*d.Seconds()/float64(*seconds))
			}
			fmt.Fprintln(&b)
		}
		stop()
	}
	fmt.Println(b.String())
	require.NoError(t, os.WriteFile(*table, []byte(b.String()), 0o644))
}
