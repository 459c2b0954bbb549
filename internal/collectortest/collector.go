// Package collectortest runs the real OpenTelemetry Collector in tests. "make collector" builds it. The environment variable
// E2E_BIN names its folder.
package collectortest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Collector is a Collector that listens on loopback for OTLP.
type Collector struct {
	t           testing.TB
	dir, config string
	binary      string
	env         []string
	cmd         *exec.Cmd

	// GRPC and HTTP are its addresses, host:port.
	GRPC, HTTP string
}

// New prepares a Collector with a pipeline into one of two exporters: file, whose output Received reads, or nop, which discards
// everything. New skips the test if no Collector was built.
func New(t testing.TB, exporter string) *Collector {
	t.Helper()
	return NewWithConfig(t, fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: "${env:LISTEN_GRPC}"}, http: {endpoint: "${env:LISTEN_HTTP}"}}}
exporters:
  file: {path: "${env:PROFILES_FILE}", append: true, flush_interval: 100ms}
  nop: {}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [%s]}
`, exporter))
}

// NewWithConfig prepares a Collector with a complete configuration. The environment variables LISTEN_GRPC and LISTEN_HTTP hold the
// addresses that the configuration must use. PROFILES_FILE names the file that Received reads. env adds variables in the form
// NAME=value. NewWithConfig skips the test if no Collector was built.
func NewWithConfig(t testing.TB, config string, env ...string) *Collector {
	t.Helper()
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		t.Skip("E2E_BIN does not name the folder of built programs: run make test-e2e")
	}
	dir := t.TempDir()
	c := &Collector{t: t, binary: filepath.Join(bin, "collector"), dir: dir, config: filepath.Join(dir, "collector.yaml"), GRPC: FreeAddr(t), HTTP: FreeAddr(t)}
	c.env = append([]string{"LISTEN_GRPC=" + c.GRPC, "LISTEN_HTTP=" + c.HTTP, "PROFILES_FILE=" + c.output()}, env...)
	require.NoError(t, os.WriteFile(c.config, []byte(config), 0o600))
	t.Cleanup(c.Stop)
	return c
}

// FreeAddr returns a free loopback address. Its port is below Linux's ephemeral port range, so no outgoing connection can take it
// in the meantime.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(20000)))
		if l, err := net.Listen("tcp", addr); err == nil {
			require.NoError(t, l.Close())
			return addr
		}
	}
	require.FailNow(t, "no free port after a hundred tries")
	return ""
}

func (c *Collector) output() string { return filepath.Join(c.dir, "out.jsonl") }

// Start starts the Collector and returns when it listens.
func (c *Collector) Start() {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "collector.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, log.Close()) }()
	c.cmd = exec.Command(c.binary, "--config", c.config, "--feature-gates=service.profilesSupport")
	c.cmd.Env = append(os.Environ(), c.env...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, c.cmd.Start())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + c.HTTP + "/")
		if err == nil {
			require.NoError(c.t, resp.Body.Close())
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(c.t, "the Collector does not listen", "%v\n%s", err, c.Log())
		}
	}
}

// Log returns the Collector's log.
func (c *Collector) Log() string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "collector.log"))
	require.NoError(c.t, err)
	return string(text)
}

// Signal sends a signal to the Collector.
func (c *Collector) Signal(s syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(s))
}

// Stop shuts a running Collector down gracefully, even if it is frozen.
func (c *Collector) Stop() {
	if c.cmd == nil || c.cmd.Process == nil { // it did not start
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait() // ends with the signal
	c.cmd = nil
}

// Received returns the requests that the Collector has written.
func (c *Collector) Received() []*collectorpb.ExportProfilesServiceRequest {
	c.t.Helper()
	text, err := os.ReadFile(c.output())
	require.NoError(c.t, err)
	return c.parse(text)
}

// SoFar is like Received, but for a running Collector. It omits an incomplete last request.
func (c *Collector) SoFar() []*collectorpb.ExportProfilesServiceRequest {
	c.t.Helper()
	text, err := os.ReadFile(c.output())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(c.t, err)
	return c.parse(text[:bytes.LastIndexByte(text, '\n')+1])
}

func (c *Collector) parse(text []byte) []*collectorpb.ExportProfilesServiceRequest {
	c.t.Helper()
	reqs, err := receiver.ReadJSONLines(bytes.NewReader(text))
	require.NoError(c.t, err)
	return reqs
}

// Size returns the number of written bytes.
func (c *Collector) Size() int64 {
	info, err := os.Stat(c.output())
	if err != nil {
		return 0 // nothing yet
	}
	return info.Size()
}

// PID returns the ID of the running Collector's process.
func (c *Collector) PID() int { return c.cmd.Process.Pid }

// Usage returns the CPU time that the running Collector has used, and its current and peak resident memory in bytes.
func (c *Collector) Usage() (cpu time.Duration, rss, peak int64) {
	c.t.Helper()
	pid := c.PID()
	var used unix.Timespec
	require.NoError(c.t, unix.ClockGettime(int32(^pid<<3|2), &used)) // the process's clock: see clock_getcpuclockid(3)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(c.t, err)
	for line := range strings.Lines(string(status)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			rss = kb << 10
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			peak = kb << 10
		}
	}
	return time.Duration(used.Nano()), rss, peak
}
