package otlp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
)

// These constants limit the sizes of files that the settings name.
const (
	maxCertificateFile = 1 << 20
	maxSecretFile      = 64 << 10
)

// readNamed reads the file named in the setting key. The error contains the remedy. inlineKey is the setting for the content
// itself.
func readNamed(key, file, inlineKey string, most int64) ([]byte, error) {
	data, err := readSmall(file, most)
	hint := ", or write the content as " + inlineKey
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %s does not exist: write the path as this process sees it (in a container, the path in the container)%s", key, file, hint)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: %s cannot be read by user %d: give that user read permission%s", key, file, os.Getuid(), hint)
	}
	return nil, fmt.Errorf("%s: %s cannot be read: %w", key, file, trusted.WithoutPath(err))
}

var errNotFile = errors.New("it is not a file")

// readSmall reads a file of at most most bytes. It does not wait for a pipe's writer.
func readSmall(file string, most int64) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotFile
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("it is larger than %s", humanize.IBytes(uint64(most)))
	}
	return data, err
}

// readSecret reads a secret file and trims white space.
func readSecret(key, file string) (string, error) {
	data, err := readNamed(key, file, strings.TrimSuffix(key, "_file"), maxSecretFile)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(data))
	switch {
	case secret == "":
		return "", fmt.Errorf("%s: %s is empty: write only the secret", key, file)
	case !config.Printable(secret):
		return "", fmt.Errorf("%s: %s has more than one line, or characters other than printable ASCII: write only the secret", key, file)
	}
	return secret, nil
}
