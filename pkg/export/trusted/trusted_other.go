//go:build !linux

package trusted

import (
	"os"
)

func openWithoutLinks(path string, flag int) (*os.File, error) {
	return os.OpenFile(path, flag|NoFollow, 0o600)
}
