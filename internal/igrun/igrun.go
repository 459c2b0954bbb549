// Package igrun runs the built ig command, for the command profile and for the tests that go through the real kernel.
package igrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopTimeout limits how long ig can take, after a stop, to deliver its last profiles and detach from the kernel.
const stopTimeout = 30 * time.Second

// asInit is a script that mounts a command's own /proc entry as /proc/1, because the command reads /proc/1. It runs in its own
// mount namespace, so nobody else sees it.
const asInit = `mount --bind /proc/$$ /proc/1 && exec "$@"`

// Command returns a command that runs ig with args. When ctx ends, ig gets SIGINT. It is killed only if it does not stop after the
// signal.
//
// ig reads /proc/1/ns to find the host's namespaces. Some sandboxes forbid this access. There, ig finds its own entry at /proc/1.
func Command(ctx context.Context, ig string, args ...string) *exec.Cmd {
	argv := append(Prefix(), ig)
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	return cmd
}

// HostNamespaces returns the reason why ig has no flags for the host and for containers, or nil. ig reads the host's namespaces
// from /proc/1/ns. Without access to it, these flags do not exist.
func HostNamespaces() error {
	if _, err := os.Stat(hostNamespace); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("reading the host's namespaces: %w: without access to them, ig supports neither --host nor containers. "+
			"Run ig as root with CAP_SYS_PTRACE in the host's PID namespace. In a sandbox that does not allow this, give ig its own /proc/1: "+
			"unshare --mount sh -c '%s' sh ig run GADGET", err, asInit)
	}
	return nil
}

const hostNamespace = "/proc/1/ns/pid"

// Prefix returns the words that must precede an ig command on this machine. On most machines, there are none.
func Prefix() []string {
	if HostNamespaces() == nil {
		return nil
	}
	return []string{"unshare", "--mount", "sh", "-c", asInit, "sh"}
}

// An import takes a second, or several seconds on a busy machine.
const (
	importAttempts = 20
	importPause    = 500 * time.Millisecond
)

// Import makes the gadget's image in an archive available to ig. It tries again while another program, for example "ig image pull"
// or make, changes ig's images.
func Import(ctx context.Context, ig, archive string) error {
	for attempt := 1; ; attempt++ {
		output, err := exec.CommandContext(ctx, ig, "image", "import", archive).CombinedOutput()
		if err == nil {
			return nil
		}
		if attempt == importAttempts || !strings.HasSuffix(strings.TrimSpace(string(output)), "retry") {
			return fmt.Errorf("importing the gadget from %s: %w\n%s", archive, err, output)
		}
		select {
		case <-time.After(importPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// GadgetFlags are the flags of "ig run" for an unsigned gadget that was built on this machine and shows all processes.
func GadgetFlags() []string {
	return []string{"--auto-mount-filesystems", "--verify-image=false", "--host"}
}
