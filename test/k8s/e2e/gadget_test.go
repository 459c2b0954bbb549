package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gadget is a running "kubectl gadget run" or "attach". The daemon sends it the same rows as the exporter.
type gadget struct {
	args   []string
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan struct{}
	err    error // once done

	mu    sync.Mutex
	ticks int             // how often the daemon has sent rows
	seen  map[string]seen // by pod
}

// seen counts a gadget's rows of one pod.
type seen struct {
	rows, ticks int
	burn        int // rows with burn_leaf in their stack
}

// start runs the gadget until stop is called or the test ends.
func (c cluster) start(t *testing.T, args ...string) *gadget {
	t.Helper()
	return c.follow(t, append([]string{"run", image, "-o", "json"}, args...)...)
}

// follow starts "kubectl gadget" with these arguments, and reads its rows as JSON.
func (c cluster) follow(t *testing.T, args ...string) *gadget {
	t.Helper()
	g := &gadget{args: args, done: make(chan struct{}), seen: map[string]seen{}}
	g.cmd = c.command(t.Context(), append([]string{"kubectl", "gadget"}, args...)...)
	g.cmd.Stderr = &g.stderr
	stdout, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, g.cmd.Start())
	go func() {
		defer close(g.done)
		read := g.read(stdout)
		_, _ = io.Copy(io.Discard, stdout)
		g.err = errors.Join(g.cmd.Wait(), read)
	}()
	t.Cleanup(func() {
		_ = g.cmd.Process.Signal(os.Interrupt)
		<-g.done
	})
	return g
}

// read counts rows until the gadget ends.
func (g *gadget) read(stdout io.Reader) error {
	for lines := json.NewDecoder(stdout); ; {
		var rows []json.RawMessage
		switch err := lines.Decode(&rows); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("reading the gadget's rows: %w", err)
		}
		tick := map[string]seen{}
		for _, raw := range rows {
			var row struct {
				K8s struct {
					PodName string `json:"podName"`
				} `json:"k8s"`
			}
			if err := json.Unmarshal(raw, &row); err != nil {
				return fmt.Errorf("reading a gadget's row: %w", err)
			}
			s := tick[row.K8s.PodName]
			s.rows++
			if bytes.Contains(raw, []byte("burn_leaf")) {
				s.burn++
			}
			tick[row.K8s.PodName] = s
		}
		g.mu.Lock()
		g.ticks++
		for pod, s := range tick {
			sum := g.seen[pod]
			g.seen[pod] = seen{rows: sum.rows + s.rows, ticks: sum.ticks + 1, burn: sum.burn + s.burn}
		}
		g.mu.Unlock()
	}
}

// of returns the gadget's data about a pod up to now.
func (g *gadget) of(pod string) seen {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[pod]
}

// String lists the number of rows of each pod.
func (g *gadget) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var pods []string
	for pod, s := range g.seen {
		if pod == "" {
			pod = "in no pod"
		}
		pods = append(pods, fmt.Sprintf("%s %d (%d with burn_leaf, at %d times)", pod, s.rows, s.burn, s.ticks))
	}
	slices.Sort(pods)
	list := strings.Join(pods, ", ")
	if list == "" {
		list = "none"
	}
	return fmt.Sprintf("the daemon has sent rows %d times to \"kubectl gadget %s\", rows by pod: %s", g.ticks, strings.Join(g.args, " "), list)
}

// waitFor waits until the daemon has sent rows of the pod several more times. The first rows can be older than the call, so it
// takes two times to show that the daemon sees the pod now.
func (g *gadget) waitFor(t *testing.T, pod string, times int) {
	t.Helper()
	before := g.of(pod).ticks
	g.wait(t, func() error {
		if now := g.of(pod).ticks; now < before+times {
			return fmt.Errorf("rows of the pod %s have arrived %d times, and %d times before that: %s", pod, now-before, before, g)
		}
		return nil
	})
}

// waitForBurn waits until the daemon has sent a row of the pod with burn_leaf.
func (g *gadget) waitForBurn(t *testing.T, pod string) {
	t.Helper()
	g.wait(t, func() error {
		if g.of(pod).burn == 0 {
			return fmt.Errorf("no row of the pod %s in burn_leaf: %s", pod, g)
		}
		return nil
	})
}

func (g *gadget) wait(t *testing.T, check func() error) {
	t.Helper()
	eventually(t, func() error {
		select {
		case <-g.done:
			return fatal(fmt.Errorf("the gadget has ended by itself: %w", errors.Join(g.err, fmt.Errorf("it said %q; %s", g.stderr.String(), g))))
		default:
			return check()
		}
	})
}

// stop interrupts the gadget as Ctrl-C does, and waits until it exits.
func (g *gadget) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, g.cmd.Process.Signal(os.Interrupt))
	select {
	case <-g.done:
		require.NoError(t, g.err, "%s; %s", g.stderr.String(), g)
	case <-time.After(patience):
		_ = g.cmd.Process.Kill()
		<-g.done
		require.Fail(t, "the gadget does not end", "%s; %s", g.stderr.String(), g)
	}
}
