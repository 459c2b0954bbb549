//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package trusted

import (
	"errors"
	"os"
)

// NoFollow is nothing here.
const NoFollow = 0

// ForeignOwner knows of no owners here.
func ForeignOwner(os.FileInfo) (owner uint32, foreign bool) { return 0, false }

// Lock refuses: without a lock, two processes could send and remove each other's messages.
func Lock(*os.File) error {
	return errors.New("a storage folder is not supported on this system")
}

// Unlock does nothing here.
func Unlock(*os.File) error { return nil }
