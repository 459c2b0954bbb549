//go:build linux || darwin || freebsd || netbsd || openbsd

package trusted

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// NoFollow keeps a link that somebody put into the storage folder from being opened.
const NoFollow = unix.O_NOFOLLOW

// ForeignOwner tells whether a file belongs to somebody who is neither this process's user nor root.
func ForeignOwner(info os.FileInfo) (owner uint32, foreign bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

// Lock takes an exclusive lock without waiting; ErrLocked says that somebody else has it.
func Lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// Unlock gives a lock back.
func Unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
