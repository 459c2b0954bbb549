//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package export

import (
	"errors"
	"os"
)

const noFollow = 0

func foreignOwner(os.FileInfo) (owner uint32, foreign bool) { return 0, false }

// lockFile refuses: without a lock, two processes could send and remove each other's messages.
func lockFile(*os.File) error {
	return errors.New("a storage folder is not supported on this system")
}

func unlockFile(*os.File) error { return nil }
