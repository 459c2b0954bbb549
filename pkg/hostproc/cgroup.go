package hostproc

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// These constants limit the number of remembered cgroups, and one walk through them.
const (
	maxGroups  = 16384
	maxEntries = 1 << 20 // number of files and folders in a walk
)

// handleKernfs is the kernel's FILEID_KERNFS. Such a handle is a cgroup's ID, which is also the inode of its folder.
const handleKernfs = 0xfe

// rootGroup is the ID of the root group. It identifies no unit, because with cgroup version 1 it holds all processes.
const rootGroup = 1

// groups finds a cgroup's systemd unit by the cgroup's ID in the unified hierarchy. The kernel never reuses an ID, so results
// stay valid. It is safe for concurrent use.
type groups struct {
	mount string // mount point of the unified hierarchy; empty if there is none

	mu      sync.Mutex
	handles bool // folders can be opened by ID, which needs CAP_DAC_READ_SEARCH
	missing bool // a requested group was not found in the last walk
	known   map[uint64]group
}

type group struct {
	unit  string
	found bool
	epoch uint32 // value of Resolver.epoch at the search
}

// newGroups returns the groups below mount, the mount point of the unified hierarchy. mount can be empty.
func newGroups(mount string) *groups {
	g := &groups{mount: mount, known: map[uint64]group{}}
	if mount == "" {
		return g
	}
	var root unix.Stat_t
	if err := unix.Stat(mount, &root); err == nil {
		_, err = openGroup(mount, root.Ino)
		g.handles = err == nil
	}
	if !g.handles {
		g.walk(0)
	}
	return g
}

// unified returns the mount point of the unified hierarchy below root, also on hosts that mount version 1 beside it.
func unified(root string) string {
	for _, dir := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		dir = filepath.Join("/", root, dir)
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// unit returns a cgroup's systemd unit, or "" if it has none. found is false if the ID is 0 or the root's, or if the cgroup no
// longer exists or is outside the mount. If groups can only be found by a walk, it is false until the next walk. The first call
// with an ID takes some ten microseconds.
func (g *groups) unit(id uint64, epoch uint32) (unit string, found bool) {
	if id == 0 || id == rootGroup || g.mount == "" {
		return "", false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old, ok := g.known[id]
	if ok && (old.found || epoch-old.epoch < keep) {
		return old.unit, old.found
	}
	e := group{epoch: epoch}
	if g.handles {
		path, err := openGroup(g.mount, id)
		switch {
		case err == nil && strings.Trim(path, "/") == "": // outside of the mount, which shows only a part of the hierarchy
		case err == nil:
			e = named(path, epoch)
		case errors.Is(err, unix.EPERM): // never allowed, for example by a seccomp profile
			g.handles = false
		}
	}
	g.missing = g.missing || !g.handles
	g.put(id, e)
	return e.unit, e.found
}

// put remembers a group. The caller holds mu.
func (g *groups) put(id uint64, e group) {
	if len(g.known) >= maxGroups {
		clear(g.known) // repeated requests look them up again
	}
	g.known[id] = e
}

// age searches for the requested groups that could not be opened, in one walk.
func (g *groups) age(epoch uint32) {
	g.mu.Lock()
	missing := g.missing
	g.missing = false
	g.mu.Unlock()
	if missing {
		g.walk(epoch)
	}
}

// named returns the group with the given path.
func named(path string, epoch uint32) group {
	return group{unit: strings.Clone(printable.Cut(Unit(path), maxName)), found: true, epoch: epoch}
}

// openGroup returns the path of a group below the mount.
func openGroup(mount string, id uint64) (string, error) {
	at, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(at)
	fd, err := unix.OpenByHandleAt(at, unix.NewFileHandle(handleKernfs, binary.NativeEndian.AppendUint64(nil, id)), unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return strings.TrimPrefix(path, mount), err
}

// walk lists the groups breadth-first: users can only make groups below their own, so these come last.
func (g *groups) walk(epoch uint32) {
	found := map[uint64]group{}
	entries := 0
	for queue := []string{"/"}; len(queue) > 0; queue = queue[1:] {
		entries += readGroups(filepath.Join(g.mount, queue[0]), maxEntries-entries, func(name string, id uint64) {
			if path := filepath.Join(queue[0], name); len(found) < maxGroups && len(path) <= maxPath {
				found[id] = named(path, epoch)
				queue = append(queue, path)
			}
		})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, e := range found {
		if old, ok := g.known[id]; !ok || !old.found {
			g.put(id, e)
		}
	}
}

// readGroups calls add for each folder in dir, with its inode, and returns the number of entries that it has read. It stops
// soon after it has read the number most.
func readGroups(dir string, most int, add func(name string, id uint64)) int {
	f, err := os.Open(dir)
	if err != nil {
		return 1 // the cgroup was removed
	}
	defer f.Close()
	n := 1
	for n < most {
		list, err := f.ReadDir(256)
		n += len(list)
		for _, e := range list {
			if !e.IsDir() {
				continue
			}
			if info, err := e.Info(); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					add(e.Name(), st.Ino)
				}
			}
		}
		if err != nil {
			break
		}
	}
	return n
}
