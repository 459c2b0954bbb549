package otlp

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// tlsSource provides the TLS settings for new connections and reads changed files again. Open connections keep their settings.
// A tlsSource is safe for concurrent use.
type tlsSource struct {
	cfg     config.TLS
	problem func(error) // called when changed files cannot be used

	mu      sync.Mutex
	checked time.Time
	pems    pems // contents from which current was built
	current *tls.Config
	version uint64
}

// newTLSSource reads the files once. Its errors name the key and the file.
func newTLSSource(cfg config.TLS, problem func(error)) (*tlsSource, error) {
	s := &tlsSource{cfg: cfg, problem: problem, checked: time.Now()}
	var err error
	if s.pems, err = readPEMs(cfg); err == nil {
		s.current, err = buildTLS(cfg, s.pems)
	}
	return s, err
}

// config returns the current settings, and a number that changes with them. The caller must not change the result.
func (s *tlsSource) config() (*tls.Config, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.checked) < s.cfg.ReloadInterval {
		return s.current, s.version
	}
	s.checked = now
	found, err := readPEMs(s.cfg)
	if err == nil && found == s.pems {
		return s.current, s.version
	}
	var next *tls.Config
	if err == nil {
		next, err = buildTLS(s.cfg, found)
	}
	if err != nil {
		// Perhaps only one of two files has changed so far, so try again next time.
		s.problem(fmt.Errorf("%w: still using the previous certificates", err))
		return s.current, s.version
	}
	s.pems, s.current = found, next
	s.version++
	return s.current, s.version
}

// pems holds the contents of the certificate files, or the settings that replace the files.
type pems struct{ trust, cert, key string }

func readPEMs(cfg config.TLS) (p pems, err error) {
	p = pems{cfg.CAPEM, cfg.CertPEM, string(cfg.KeyPEM)}
	for _, f := range []struct {
		key, file string
		content   *string
	}{{"tls.ca", cfg.CAFile, &p.trust}, {"tls.cert", cfg.CertFile, &p.cert}, {"tls.key", cfg.KeyFile, &p.key}} {
		if f.file == "" {
			continue
		}
		data, err := readNamed(f.key+"_file", f.file, f.key+"_pem", maxCertificateFile)
		if err != nil {
			return p, err
		}
		*f.content = string(data)
	}
	return p, nil
}

func buildTLS(cfg config.TLS, p pems) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         cfg.ServerNameOverride,
		InsecureSkipVerify: cfg.InsecureSkipVerify,
	}
	if cfg.MinVersion == "1.3" {
		c.MinVersion = tls.VersionTLS13
	}
	if p.trust != "" {
		c.RootCAs = x509.NewCertPool()
		if cfg.SystemCAs {
			var err error
			if c.RootCAs, err = x509.SystemCertPool(); err != nil {
				return nil, fmt.Errorf("tls.include_system_ca_certs_pool: reading the system's certificates: %w", err)
			}
		}
		if !c.RootCAs.AppendCertsFromPEM([]byte(p.trust)) {
			return nil, fmt.Errorf("tls.ca_file: %s has no certificate: write PEM (-----BEGIN CERTIFICATE-----)", cmp.Or(cfg.CAFile, "tls.ca_pem"))
		}
	}
	if p.cert == "" && p.key == "" {
		return c, nil
	}
	pair, err := config.KeyPair([]byte(p.cert), []byte(p.key))
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file: %s and %s: %w", cmp.Or(cfg.CertFile, "tls.cert_pem"), cmp.Or(cfg.KeyFile, "tls.key_pem"), err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// reloadingCreds uses source's current settings for each gRPC connection. The embedded credentials have the first settings.
type reloadingCreds struct {
	credentials.TransportCredentials
	source *tlsSource
}

// ClientHandshake implements credentials.TransportCredentials.
func (c reloadingCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, _ := c.source.config()
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (c reloadingCreds) Clone() credentials.TransportCredentials { return c }
