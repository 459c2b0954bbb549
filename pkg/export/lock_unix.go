//go:build linux || darwin || freebsd || netbsd || openbsd

package export

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// noFollow keeps a link that somebody put into the storage folder from being opened.
const noFollow = unix.O_NOFOLLOW

// foreignOwner tells whether a file belongs to somebody who is neither this process's user nor root.
func foreignOwner(info os.FileInfo) (owner uint32, foreign bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

// lockFile takes an exclusive lock without waiting; errLocked says that somebody else has it.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

func unlockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
