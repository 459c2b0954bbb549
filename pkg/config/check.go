package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// What is read of a file that a setting names, at most.
const (
	maxCertificateFile = 1 << 20
	maxSecretFile      = 64 << 10
)

// Check opens the files and folders that the settings name and returns what is wrong with them, all
// at once: each error names the exporter, the key, the file and what to do. Load does not do that,
// because it runs at a daemon's start. It does not dial.
func (e Exporter) Check() error {
	var errs []error
	problem := func(key, format string, args ...any) {
		errs = append(errs, &Problem{Exporter: e.Name, Key: key, Text: fmt.Sprintf(format, args...)})
	}
	if e.Transport == TransportFile {
		e.checkPath(problem)
		return errors.Join(errs...)
	}
	e.checkTLS(problem)
	e.checkSecret(problem, "auth.bearer_token_file", e.Auth.BearerTokenFile)
	e.checkSecret(problem, "auth.password_file", e.Auth.PasswordFile)
	e.checkStorage(problem)
	return errors.Join(errs...)
}

type reporter func(key, format string, args ...any)

func (e Exporter) checkTLS(problem reporter) {
	if e.Insecure {
		return
	}
	t := e.TLS
	if ca, ok := readFor(problem, "tls.ca_file", t.CAFile, "tls.ca_pem", maxCertificateFile); ok && !x509.NewCertPool().AppendCertsFromPEM(ca) {
		problem("tls.ca_file", "%s holds no certificate, takes PEM (-----BEGIN CERTIFICATE-----)", t.CAFile)
	}
	cert, certOK := readFor(problem, "tls.cert_file", t.CertFile, "tls.cert_pem", maxCertificateFile)
	key, keyOK := readFor(problem, "tls.key_file", t.KeyFile, "tls.key_pem", maxCertificateFile)
	if t.CertPEM != "" {
		cert, certOK = []byte(t.CertPEM), true
	}
	if t.KeyPEM != "" {
		key, keyOK = []byte(t.KeyPEM), true
	}
	if !certOK || !keyOK {
		return
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		problem("tls.cert_file", "%s and %s: %s", nameOr(t.CertFile, "tls.cert_pem"), nameOr(t.KeyFile, "tls.key_pem"), pairProblem(err))
	}
}

func nameOr(file, key string) string {
	if file == "" {
		return key
	}
	return file
}

// pairProblem puts the words of crypto/tls, which hold no part of a key, into ours.
func pairProblem(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "does not match"):
		return "the certificate and the key do not belong together: write the key that the certificate was made for"
	case strings.Contains(text, "in certificate input"):
		return "there is no certificate, takes PEM (-----BEGIN CERTIFICATE-----)"
	case strings.Contains(text, "in key input"), strings.Contains(text, "parse private key"):
		return "there is no key that can be read, takes PEM without a passphrase (-----BEGIN PRIVATE KEY-----)"
	}
	return "the certificate cannot be read: " + clip(strings.TrimPrefix(text, "tls: "))
}

// readFor reads a file that a setting names; instead is the setting that takes the content. It
// returns false where the setting names none, or a file that cannot be read, which it reports.
func readFor(problem reporter, key, file, instead string, most int64) ([]byte, bool) {
	if file == "" {
		return nil, false
	}
	data, err := readSmall(file, most)
	if err == nil {
		return data, true
	}
	hint := ", or write the content as " + instead
	switch {
	case errors.Is(err, fs.ErrNotExist):
		problem(key, "%s does not exist: write the path as this process sees it (in a container that is the container's)%s", file, hint)
	case errors.Is(err, fs.ErrPermission):
		problem(key, "%s cannot be read by user %d: give that user the permission%s", file, os.Getuid(), hint)
	default:
		problem(key, "%s cannot be read: %v", file, reason(err))
	}
	return nil, false
}

var errNotFile = errors.New("it is not a file")

// readSmall does not wait for a pipe to be written.
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
		err = fmt.Errorf("it is larger than %s", formatSize(most))
	}
	return data, err
}

// reason is an error without the path, which the message already has.
func reason(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

func (e Exporter) checkSecret(problem reporter, key, file string) {
	data, ok := readFor(problem, key, file, strings.TrimSuffix(key, "_file"), maxSecretFile)
	if !ok {
		return
	}
	switch secret := strings.TrimSpace(string(data)); {
	case secret == "":
		problem(key, "%s is empty: it takes the secret and nothing else", file)
	case !printable(secret):
		problem(key, "%s holds more than one line, or characters other than printable ASCII: it takes the secret and nothing else", file)
	}
}

func (e Exporter) checkStorage(problem reporter) {
	const key = "sending_queue.storage"
	folder := e.Queue.Storage
	if folder == "" {
		return
	}
	switch info, err := os.Stat(folder); {
	case errors.Is(err, fs.ErrNotExist):
		// It is made with the first request that is stored.
		checkParent(problem, key, folder)
	case err != nil:
		problem(key, "%s cannot be used: %v", folder, reason(err))
	case !info.IsDir():
		problem(key, "%s is not a folder: write a folder that only this process uses", folder)
	}
}

func (e Exporter) checkPath(problem reporter) {
	switch info, err := os.Stat(e.Path); {
	case errors.Is(err, fs.ErrNotExist):
		checkParent(problem, "path", e.Path)
	case err != nil:
		problem("path", "%s cannot be used: %v", e.Path, reason(err))
	case info.IsDir():
		problem("path", "%s is a folder: write the path of a file in it", e.Path)
	}
}

func checkParent(problem reporter, key, path string) {
	parent := filepath.Dir(path)
	switch info, err := os.Stat(parent); {
	case err != nil:
		problem(key, "%s cannot be made: the folder %s: %v", path, parent, reason(err))
	case !info.IsDir():
		problem(key, "%s cannot be made: %s is not a folder", path, parent)
	}
}
