package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cluster accesses the running test cluster through its scripts and kubectl.
type cluster struct {
	lab string // build.sh's results, and state/ of the running cluster
	dir string // this project's test/k8s
}

// command returns a command that runs inside the cluster's namespaces.
func (c cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, "cluster.sh"), append([]string{"in"}, args...)...)
	cmd.Env = append(os.Environ(), "LAB="+c.lab)
	// The script replaces itself with the command, so the signal reaches the command.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

func (c cluster) try(ctx context.Context, args ...string) (string, error) {
	cmd := c.command(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out), nil
}

// in runs a command inside the cluster's namespaces and returns its output.
func (c cluster) in(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Minute)
	defer cancel()
	out, err := c.try(ctx, args...)
	require.NoError(t, err)
	return out
}

func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.in(t, append([]string{"kubectl"}, args...)...)
}

// manifest fills in the variables of a file in manifests/, and returns the path of the result.
func (c cluster) manifest(t *testing.T, name string, variables ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, "manifests", name))
	require.NoError(t, err)
	text := strings.NewReplacer(append(variables, "@STATE@", filepath.Join(c.lab, "state"))...).Replace(string(data))
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (c cluster) apply(t *testing.T, name string, variables ...string) {
	t.Helper()
	c.kubectl(t, "apply", "-f", c.manifest(t, name, variables...))
}

// hold removes the file that a workload waits for, and release creates it.
func (c cluster) hold(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(c.lab, "state", "release", name)))
}

func (c cluster) release(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(c.lab, "state", "release", name), nil, 0o600))
}

// daemonPod returns the name and UID of the daemon's ready pod.
func (c cluster) daemonPod(t *testing.T) (name, uid string) {
	t.Helper()
	c.kubectl(t, "-n", "gadget", "rollout", "status", "daemonset/gadget", "--timeout="+patience.String())
	out := c.kubectl(t, "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.phase} {.metadata.deletionTimestamp}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		// A pod that is being deleted has a fourth field.
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "Running" {
			require.Empty(t, name, "more than one pod of the daemon: %s", out)
			name, uid = fields[0], fields[1]
		}
	}
	require.NotEmpty(t, name, "no pod of the daemon runs: %q", out)
	return name, uid
}

// daemonProcess finds the daemon by its pod's cgroup, and returns its process ID.
func (c cluster) daemonProcess(t *testing.T) (pid int) {
	t.Helper()
	_, uid := c.daemonPod(t)
	procs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, proc := range procs {
		cgroup, err := os.ReadFile(filepath.Join(proc, "cgroup"))
		if err != nil || !bytes.Contains(cgroup, []byte(uid)) {
			continue
		}
		args, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err == nil && bytes.Contains(args, []byte("gadgettracermanager\x00-serve")) {
			pid, err = strconv.Atoi(filepath.Base(proc))
			require.NoError(t, err)
			return pid
		}
	}
	require.FailNow(t, "no process of the daemon's pod found", uid)
	return 0
}

// counters holds the daemon's own counters: their sums over all labels, by name, and their lines of text.
type counters struct {
	sum  map[string]float64
	text string
}

// rowCounts counts the rows that a daemon has read, delivered and dropped.
type rowCounts struct{ read, delivered, dropped float64 }

func (f counters) rows() rowCounts {
	return rowCounts{
		f.sum["ig_otel_profiles_rows_read_total"], f.sum["ig_otel_profiles_rows_delivered_total"], f.sum["ig_otel_profiles_rows_dropped_total"],
	}
}

// figures returns the daemon's counters as soon as its endpoint answers.
func (c cluster) figures(t *testing.T) (f counters) {
	t.Helper()
	eventually(t, func() (err error) {
		f, err = c.counters(t.Context())
		return err
	})
	return f
}

// counters reads the daemon's Prometheus endpoint.
func (c cluster) counters(ctx context.Context) (counters, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name, err := c.try(ctx, "kubectl", "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget", "--field-selector=status.phase=Running",
		"-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return counters{}, err
	}
	out, err := c.try(ctx, "kubectl", "get", "--request-timeout=20s", "--raw", "/api/v1/namespaces/gadget/pods/"+name+":2224/proxy/metrics")
	if err != nil {
		return counters{}, err
	}
	all := counters{sum: map[string]float64{}}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			continue
		}
		metric, _, _ := strings.Cut(line[:end], "{")
		all.sum[metric] += value
		if strings.HasPrefix(line, "ig_otel_profiles_") && !strings.Contains(metric, "duration") {
			all.text += line + "\n"
		}
	}
	return all, nil
}

// patience limits all waits. It is long, so a busy machine makes the test slow but does not make it fail.
const patience = 4 * time.Minute

// fatal is an error that ends a wait.
func fatal(err error) error { return fatalError{err} }

type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// eventually waits until check returns nil. After a timeout, it fails with the last error of check.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(250 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if errors.As(err, new(fatalError)) || time.Since(start) > patience {
			require.NoError(t, err, "after %s", time.Since(start).Round(time.Second))
		}
	}
}

// collectorFiles returns the files that the Collectors have written, oldest first.
func (c cluster) collectorFiles() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(c.lab, "state", "collector", "*.jsonl"))
	if err != nil {
		return nil, err
	}
	times := map[string]time.Time{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		times[f] = info.ModTime()
	}
	slices.SortFunc(files, func(a, b string) int { return times[a].Compare(times[b]) })
	return files, nil
}
