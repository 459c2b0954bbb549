package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// tlsSource gives the TLS settings for the next connection, and reads its files again when they
// have changed. Both transports use it in the same way: what is open stays open, what is new uses
// the new files. Safe for concurrent use.
type tlsSource struct {
	cfg     config.TLS
	problem func(error) // told when changed files cannot be used

	mu      sync.Mutex
	checked time.Time
	stamps  stamps
	current *tls.Config
	version uint64
}

// fileStamp tells one content of a file from the next.
type fileStamp struct {
	modified time.Time
	size     int64
	info     fs.FileInfo
}

func (s fileStamp) same(o fileStamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.info, o.info)
}

// stamps tell whether a config.TLS would now read something else: one for each of its three files.
type stamps [3]fileStamp

func (s stamps) same(o stamps) bool {
	for i := range s {
		if !s[i].same(o[i]) {
			return false
		}
	}
	return true
}

// newTLSSource reads the files once; an error names the key and the file.
func newTLSSource(cfg config.TLS, problem func(error)) (*tlsSource, error) {
	s := &tlsSource{cfg: cfg, problem: problem, checked: time.Now()}
	s.stamps = s.stat()
	var err error
	s.current, err = buildTLS(cfg)
	return s, err
}

// config returns the settings to use now and a number that changes with them. The result must
// not be changed.
func (s *tlsSource) config() (*tls.Config, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.checked) < s.cfg.ReloadInterval {
		return s.current, s.version
	}
	s.checked = now
	found := s.stat()
	if found.same(s.stamps) {
		return s.current, s.version
	}
	next, err := buildTLS(s.cfg)
	if err != nil {
		// Perhaps one of two files is already new: look again next time.
		s.problem(fmt.Errorf("%w: going on with the certificates read before", err))
		return s.current, s.version
	}
	s.stamps, s.current = found, next
	s.version++
	return s.current, s.version
}

func (s *tlsSource) stat() (list stamps) {
	for i, path := range []string{s.cfg.CAFile, s.cfg.CertFile, s.cfg.KeyFile} {
		var st fileStamp
		if path != "" {
			if info, err := os.Stat(path); err == nil {
				st = fileStamp{modified: info.ModTime(), size: info.Size(), info: info}
			}
		}
		list[i] = st
	}
	return list
}

func buildTLS(cfg config.TLS) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         cfg.ServerNameOverride,
		InsecureSkipVerify: cfg.InsecureSkipVerify,
	}
	if cfg.MinVersion == "1.3" {
		c.MinVersion = tls.VersionTLS13
	}

	var err error
	if c.RootCAs, c.Certificates, err = certificates(cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// reloadingCreds makes each gRPC connection with the source's settings of that moment.
type reloadingCreds struct{ source *tlsSource }

func (c reloadingCreds) now() credentials.TransportCredentials {
	cfg, _ := c.source.config()
	return credentials.NewTLS(cfg)
}

// ClientHandshake implements credentials.TransportCredentials.
func (c reloadingCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.now().ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials; an exporter is never a server.
func (c reloadingCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server")
}

// Info implements credentials.TransportCredentials.
func (c reloadingCreds) Info() credentials.ProtocolInfo { return c.now().Info() }

// Clone implements credentials.TransportCredentials.
func (c reloadingCreds) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials. The name is a setting here.
//
// Deprecated: grpc.WithAuthority replaces it.
func (c reloadingCreds) OverrideServerName(string) error {
	return errors.New("set tls.server_name_override")
}
