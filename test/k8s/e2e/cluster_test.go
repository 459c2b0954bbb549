package e2e

import (
	"bytes"
	"context"
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

// cluster is the running test cluster: everything is done through its scripts
// and its kubectl.
type cluster struct {
	lab string // what build.sh has filled, with state/ of the running cluster
	dir string // this project's test/k8s
}

// command is one to run inside the cluster's namespaces.
func (c cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, "cluster.sh"), append([]string{"in"}, args...)...)
	cmd.Env = append(os.Environ(), "LAB="+c.lab)
	// The script execs into what it runs, so that an interrupt reaches it.
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := c.try(ctx, args...)
	require.NoError(t, err)
	return out
}

func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.in(t, append([]string{"kubectl"}, args...)...)
}

// manifest writes a file of manifests/ with its variables replaced, and returns its path.
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

// gadget is a "kubectl gadget run" that runs beside the test.
type gadget struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan error
}

// start starts a gadget. What it prints is dropped. Its user has to wait for it.
func (c cluster) start(t *testing.T, args ...string) *gadget {
	t.Helper()
	g := &gadget{done: make(chan error, 1)}
	g.cmd = c.command(t.Context(), append([]string{"kubectl", "gadget", "run", image}, args...)...)
	g.cmd.Stderr = &g.stderr
	require.NoError(t, g.cmd.Start())
	go func() { g.done <- g.cmd.Wait() }()
	return g
}

func (g *gadget) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-g.done:
		require.NoError(t, err, g.stderr.String())
	case <-time.After(2 * time.Minute):
		_ = g.cmd.Process.Kill()
		require.Fail(t, "the gadget does not end", g.stderr.String())
	}
}

// daemonPod is the name and the UID of the daemon's pod that is ready.
func (c cluster) daemonPod(t *testing.T) (name, uid string) {
	t.Helper()
	c.kubectl(t, "-n", "gadget", "rollout", "status", "daemonset/gadget", "--timeout=120s")
	out := c.kubectl(t, "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget", "--field-selector=status.phase=Running",
		"-o", `jsonpath={range .items[?(@.metadata.deletionTimestamp=="")]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	if strings.TrimSpace(out) == "" {
		// The filter does not match where the field is absent.
		out = c.kubectl(t, "-n", "gadget", "get", "pods", "-l", "k8s-app=gadget", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	}
	fields := strings.Fields(out)
	require.Len(t, fields, 2, out)
	return fields[0], fields[1]
}

// usage is what a process has used so far.
type usage struct {
	cpu time.Duration
	rss int64 // bytes, now
}

// daemonUsage finds the daemon's process by its pod's cgroup and reads /proc.
func (c cluster) daemonUsage(t *testing.T) usage {
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
		if err != nil || !bytes.Contains(args, []byte("gadgettracermanager\x00-serve")) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, "stat"))
		require.NoError(t, err)
		// The second field is the name in parentheses and may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, err := strconv.ParseInt(fields[11], 10, 64)
		require.NoError(t, err)
		system, err := strconv.ParseInt(fields[12], 10, 64)
		require.NoError(t, err)
		pages, err := strconv.ParseInt(fields[21], 10, 64)
		require.NoError(t, err)
		// USER_HZ is 100 on every architecture that the daemon runs on.
		return usage{cpu: time.Duration(user+system) * 10 * time.Millisecond, rss: pages * int64(os.Getpagesize())}
	}
	require.Fail(t, "no process of the daemon's pod found", uid)
	return usage{}
}

// metrics reads the daemon's counters from its Prometheus endpoint, summed over their labels.
func (c cluster) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	name, _ := c.daemonPod(t)
	ip := c.kubectl(t, "-n", "gadget", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
	text := c.in(t, "busybox", "wget", "-q", "-O", "-", "http://"+ip+":2224/metrics")
	sums := map[string]float64{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if end < 0 {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		if err != nil {
			continue
		}
		metric, _, _ := strings.Cut(line[:end], "{")
		sums[metric] += value
	}
	return sums
}

// eventually waits until check returns nil, and fails with its last error otherwise.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "after %s", limit)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// collectorFiles are what the Collectors have written, oldest first.
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
