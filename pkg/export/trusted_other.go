//go:build !linux

package export

import "os"

func openWithoutLinks(path string, flag int) (*os.File, error) {
	return os.OpenFile(path, flag|noFollow, 0o600)
}
