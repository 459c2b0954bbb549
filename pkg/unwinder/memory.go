package unwinder

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// memoryMost and memoryLeast are the bounds of the unwinder's memory limit in bytes. With less than memoryLeast, it cannot
	// work.
	memoryMost  = 1 << 30
	memoryLeast = 128 << 20
)

// memoryBound returns the unwinder's memory limit in bytes. It is half of the limit that this process shares with its children.
// Without this limit, the unwinder could use up the cgroup's memory. The kernel would then kill all processes of the cgroup, as
// systemd and the kubelet configure it.
func memoryBound() uint64 {
	return min(memoryMost, max(memoryLeast, groupLimit()/2))
}

// groupLimit returns the lowest memory limit of this process's cgroup and its parents in bytes, or math.MaxUint64.
func groupLimit() uint64 {
	limit := uint64(math.MaxUint64)
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		// The format is number:controllers:path, without controllers for version 2 (cgroups(7)).
		_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(line, ":")
		switch {
		case controllers == "":
			root, done := unifiedRoot()
			limit = min(limit, limitAlong(root, path, "memory.max"))
			done()
		case strings.Contains(","+controllers+",", ",memory,"):
			limit = min(limit, limitAlong("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
		}
	}
	return limit
}

// unifiedRoot returns a folder in which the paths of /proc/self/cgroup lead to the version 2 cgroups. The mount at
// /sys/fs/cgroup can have another root. In Inspektor Gadget's daemon, it has the host's.
func unifiedRoot() (dir string, done func()) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err == nil {
		defer unix.Close(fs)
		if err = unix.FsconfigCreate(fs); err == nil {
			if root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0); err == nil {
				return "/proc/self/fd/" + strconv.Itoa(root), func() { _ = unix.Close(root) }
			}
		}
	}
	return "/sys/fs/cgroup", func() {}
}

// limitAlong returns the lowest limit in files of this name, in root/path and its parents up to root.
func limitAlong(root, path, file string) uint64 {
	limit := uint64(math.MaxUint64)
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		text, _ := os.ReadFile(filepath.Join(root, path, file)) // the root cgroup has no limit
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			limit = min(limit, cmp.Or(n, math.MaxUint64))
		}
		if path == "/" {
			return limit
		}
	}
}
