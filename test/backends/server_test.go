//go:build e2e

package backends

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patient holds exporter settings for tests that compare sums exactly. A busy server can store a request and answer after the
// exporter's deadline of 10 s. Then the exporter sends the request again, and the server stores it twice.
const patient = "        timeout: 1m\n        shutdown_timeout: 1m\n"

// span is a time range of a query.
type span struct{ from, until time.Time }

// server is a running backend.
type server interface {
	// name is the preset's name. version is the server's version in the table.
	name() string
	version() string
	addr() string
	// query returns the stacks of profile type cpu that match a selector in the backend's own language.
	query(t *testing.T, selector string, in span) []stack
	// flame is the total of the flame graph on the server's page. stored is the total of its samples over time.
	flame(t *testing.T, selector string, in span) int64
	stored(t *testing.T, selector string, in span) int64
	// diff returns the two sides of a comparison. If the server compares functions, these are the values of the function entry.
	diff(t *testing.T, selector string, left, right span) (int64, int64)
	// seconds converts a value to seconds of CPU time.
	seconds(value int64, frequency int) float64
	labels(t *testing.T, selector string, in span) []string
	// profileTypes returns the types that have arrived. of returns the server for queries about another type than CPU.
	profileTypes(t *testing.T, in span) []string
	of(profileType string) server
	stop()
}

// process is the program of a backend.
type process struct {
	cmd *exec.Cmd
	log string
}

// run starts a program and waits until one of its pages answers.
func run(t *testing.T, ready string, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{log: filepath.Join(t.TempDir(), filepath.Base(program)+".log")}
	log, err := os.Create(p.log)
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.stop)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(p.log)
			t.Logf("the end of %s's output:\n%s", filepath.Base(program), text[max(0, len(text)-3000):])
		}
	})
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		resp, err := http.Get(ready)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		require.True(t, time.Now().Before(deadline), "%s is not ready: %v", program, err)
	}
}

func (p *process) stop() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// call requests JSON. With a body, it is a POST.
func call(t *testing.T, target string, query url.Values, body, answer any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	method, content := http.MethodGet, io.Reader(nil)
	if body != nil {
		text, err := json.Marshal(body)
		require.NoError(t, err)
		method, content = http.MethodPost, bytes.NewReader(text)
	}
	if query != nil {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", target, text)
	require.NoError(t, json.Unmarshal(text, answer), "%s: %s", target, text)
}

// selector writes {a="b", c="d"}, the syntax of both backends.
func selector(pairs ...string) string {
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf("%s=%q", pairs[i], pairs[i+1]))
	}
	return "{" + strings.Join(list, ", ") + "}"
}

func total(stacks []stack) int64 {
	sum := int64(0)
	for _, s := range stacks {
		sum += s.value
	}
	return sum
}
