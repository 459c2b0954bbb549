package hostproc

import (
	"cmp"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// namespaces finds whether a process sees the host's files. Every user can create a user namespace, and mount anything over the
// host's files in it. So paths there are not trusted. Without a user namespace, only a privileged process can make its own
// mounts, as systemd does for services. Those paths are trusted if the root is the host's, not a container's.
type namespaces struct {
	// These are the host's. If mount is empty, it could not be read, and all mounts count as the host's.
	user, mount string
	root        file
}

type file struct {
	major, minor uint32
	inode        uint64
}

// initialUser is the initial user namespace. The kernel's source defines its number (PROC_USER_INIT_INO).
const initialUser = "user:[4026531837]"

func newNamespaces(proc string) namespaces {
	var n namespaces
	for _, pid := range []string{"1", "2"} { // 2 is kthreadd, for callers without access to 1
		dir := filepath.Join(proc, pid)
		mount, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
		if err != nil {
			continue
		}
		n.mount = mount
		n.user, _ = os.Readlink(filepath.Join(dir, "ns/user"))
		n.root, _ = identify(filepath.Join(dir, "root"))
		break
	}
	n.user = cmp.Or(n.user, initialUser)
	return n
}

// foreign returns the kind of namespace that makes paths of a process untrusted, or "". dir is the process's folder in /proc.
func (n *namespaces) foreign(dir string) string {
	if user, err := os.Readlink(filepath.Join(dir, "ns/user")); err == nil && user != n.user {
		return "user namespace"
	}
	mount, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
	if err != nil || n.mount == "" || mount == n.mount {
		return ""
	}
	if root, ok := identify(filepath.Join(dir, "root")); ok && root != n.root {
		return "mount namespace"
	}
	return ""
}

// identify returns a folder's identity without a call into its file system, which can hang.
func identify(path string) (file, bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	return file{st.Dev_major, st.Dev_minor, st.Ino}, err == nil
}
