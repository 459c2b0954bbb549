package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// collector is a running OpenTelemetry Collector.
type collector struct {
	cmd    *exec.Cmd
	log    *bytes.Buffer
	cancel context.CancelFunc
	// ended is closed when the process exits.
	ended chan struct{}
	// load and profiles are the addresses of its two receivers.
	load, profiles string
}

// collectorConfig has two pipelines in one process. One does a Collector's usual work for the load. The other writes the received
// profiles to a file.
const collectorConfig = `
receivers:
  otlp/load: {protocols: {grpc: {endpoint: %q}}}
  otlp/profiles: {protocols: {grpc: {endpoint: %q}}}
processors:
  memory_limiter: {check_interval: 1s, limit_mib: 1024}
  resource: {attributes: [{key: deployment.environment.name, value: demo, action: upsert}]}
exporters:
  nop: {}
  file: {path: %q, flush_interval: 1s}
service:
  telemetry: {metrics: {level: none}, logs: {level: warn}}
  pipelines:
    profiles/load: {receivers: [otlp/load], processors: [memory_limiter, resource], exporters: [nop]}
    profiles/self: {receivers: [otlp/profiles], exporters: [file]}
`

// startCollector starts a Collector that writes profiles to file, and returns when it listens.
func startCollector(ctx context.Context, program, file string) (*collector, error) {
	c := &collector{log: &bytes.Buffer{}, ended: make(chan struct{})}
	for _, address := range []*string{&c.load, &c.profiles} {
		var err error
		if *address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an earlier result: %w", err)
	}
	config := filepath.Join(filepath.Dir(file), "collector.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, collectorConfig, c.load, c.profiles, file), 0o600); err != nil {
		return nil, fmt.Errorf("writing the Collector's configuration: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ctx limits only the start
	c.cancel = cancel
	c.cmd = exec.CommandContext(running, program, "--config", config, "--feature-gates=service.profilesSupport")
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 10 * time.Second // after this, the process is killed
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the Collector: %w", err)
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // ProcessState has the result
	}()
	for {
		conn, err := net.Dial("tcp", c.profiles)
		if err == nil {
			return c, conn.Close()
		}
		select {
		case <-c.ended:
			return nil, fmt.Errorf("the Collector exited: %s\n%s", c.cmd.ProcessState, c.log)
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for the Collector to listen: %w", err), c.stop())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the Collector, which first writes its remaining data. Further calls do nothing.
func (c *collector) stop() error {
	c.cancel()
	<-c.ended
	if !c.cmd.ProcessState.Success() {
		return fmt.Errorf("the Collector exited: %s\n%s", c.cmd.ProcessState, c.log)
	}
	return nil
}

// cpu returns the CPU time that the Collector has used, or 0 after its end.
func (c *collector) cpu() time.Duration {
	var used unix.Timespec
	if unix.ClockGettime(int32(^c.cmd.Process.Pid<<3|2), &used) != nil { // the process's CPU clock: see clock_getcpuclockid(3)
		return 0
	}
	return time.Duration(used.Nano())
}

// freeAddress returns a free loopback address.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return l.Addr().String(), nil
}
