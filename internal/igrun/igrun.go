// Package igrun runs the built ig command, for the demo and for the tests that
// go through the real kernel.
package igrun

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopTimeout is how long ig may take to deliver its last profiles and detach
// from the kernel after it was told to stop.
const stopTimeout = 30 * time.Second

// asInit is a script that gives a command a /proc/1 that it can read: its own.
// It runs in a mount namespace of its own, so nobody else sees it.
const asInit = `mount --bind /proc/$$ /proc/1 && exec "$@"`

// Command returns a command that runs ig with args. When ctx ends it gets
// SIGINT, and is killed only if it does not stop after that.
//
// ig looks at /proc/1/ns to find the host's namespaces. Where that is refused,
// as in some sandboxes, ig sees itself there.
func Command(ctx context.Context, ig string, args ...string) *exec.Cmd {
	argv := append(Prefix(), ig)
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	return cmd
}

// Prefix returns what has to come before an ig command on this machine:
// nothing on most.
func Prefix() []string {
	if _, err := os.Stat("/proc/1/ns/pid"); !errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return []string{"unshare", "--mount", "sh", "-c", asInit, "sh"}
}

// GadgetFlags are the flags of "ig run" for a gadget that was built on this
// machine, and so is not signed, and that is to see all processes.
func GadgetFlags() []string {
	return []string{"--auto-mount-filesystems", "--verify-image=false", "--host"}
}
