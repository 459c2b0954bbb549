//go:build linux || darwin || freebsd || netbsd || openbsd

package export

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// noFollow keeps a link that somebody put into the storage folder from being opened.
const noFollow = unix.O_NOFOLLOW

// lockFile takes an exclusive lock without waiting; errLocked says that somebody else has it.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
