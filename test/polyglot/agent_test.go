//go:build e2e

package polyglot

import (
	"testing"
)

// tracefs runs a command with the file system that tracepoints are found in. ig mounts it by itself.
const tracefs = `mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing; exec "$@"`

// startAgent starts the eBPF profiler's own agent, which samples everything on the machine.
func startAgent(t *testing.T, flags ...string) *gadgetRun {
	t.Helper()
	run, dir := newRun(t)
	args := []string{
		"unshare", "--mount", "sh", "-c", tracefs, "sh",
		built(t, "E2E_BIN", "ebpf-profiler"), "-collection-agent", run.receiver.Addr(), "-disable-tls",
		"-samples-per-second", frequency, "-reporter-interval", "2s",
	}
	run.start(dir, append(args, flags...))
	return run
}

// TestAgent shows what the eBPF profiler's own agent finds of the same programs.
func TestAgent(t *testing.T) {
	running := startLoads(t, measured())
	judgeRun(t, "agent", startAgent(t), running)
}
