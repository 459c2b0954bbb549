package otlp

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	temp := path + ".new"
	require.NoError(t, os.WriteFile(temp, data, 0o600))
	require.NoError(t, os.Rename(temp, path))
}

// A replaced file must be read again, even if its time and size are the same.
func TestReplacedFileOfTheSameTimeAndSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.pem")
	when := time.Now().Add(-time.Hour)
	replace := func() {
		pem := recvtest.NewCA(t).PEM
		writeFile(t, path, append(pem, strings.Repeat("\n", 10_000-len(pem))...))
		require.NoError(t, os.Chtimes(path, when, when))
	}
	replace()
	s, err := newTLSSource(config.TLS{CAFile: path}, func(err error) { t.Error(err) })
	require.NoError(t, err)
	_, before := s.config()
	_, same := s.config()
	require.Equal(t, before, same)
	replace()
	_, after := s.config()
	require.NotEqual(t, before, after)
}

func pemBytes(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	block, _ := pem.Decode(data)
	require.NotNil(t, block)
	return block.Bytes
}

// systemEnv makes the test binary report whether it trusts the system's certificates, in SSL_CERT_FILE, in addition to the
// settings' certificates. A process reads them only once.
const systemEnv = "EXPORT_TEST_OWN_CA"

func TestSystemCertificates(t *testing.T) {
	if file := os.Getenv(systemEnv); file != "" {
		for _, system := range []bool{false, true} {
			source, err := newTLSSource(config.TLS{CAFile: file, SystemCAs: system}, nil)
			require.NoError(t, err)
			c, _ := source.config()
			for name, trusted := range map[string]bool{"OWN": true, "SYSTEM": system} {
				cert, err := x509.ParseCertificate(pemBytes(t, os.Getenv("EXPORT_TEST_CERT_"+name)))
				require.NoError(t, err)
				_, err = cert.Verify(x509.VerifyOptions{Roots: c.RootCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
				require.Equal(t, trusted, err == nil, "%s %v", name, err)
			}
		}
		return
	}
	own, system := recvtest.NewCA(t), recvtest.NewCA(t)
	dir := t.TempDir()
	env := append(os.Environ(), systemEnv+"="+filepath.Join(dir, "own.pem"), "SSL_CERT_FILE="+filepath.Join(dir, "system.pem"), "SSL_CERT_DIR="+dir+"/none")
	for name, ca := range map[string]*recvtest.CA{"own": own, "system": system} {
		writeFile(t, filepath.Join(dir, name+".pem"), ca.PEM)
		writeFile(t, filepath.Join(dir, name+"-cert.pem"), ca.Issue(t, name, time.Now().Add(time.Hour)).Cert)
		env = append(env, "EXPORT_TEST_CERT_"+strings.ToUpper(name)+"="+filepath.Join(dir, name+"-cert.pem"))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSystemCertificates$", "-test.v")
	cmd.Env = env
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "PASS: TestSystemCertificates")
}
