package export

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	temp := path + ".new"
	require.NoError(t, os.WriteFile(temp, data, 0o600))
	require.NoError(t, os.Rename(temp, path))
}

// tlsReceiver starts a receiver that requires client certificates. clients returns the names that clients have shown.
func tlsReceiver(t *testing.T, transport string, ca *recvtest.CA, server *tls.Config) (endpoint string, clients func() []string) {
	t.Helper()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
	endpoint, requests := recvtest.Start(t, transport, server, nil)
	return endpoint, func() (names []string) {
		for _, r := range requests() {
			names = append(names, r.Client)
		}
		return names
	}
}

var bothTransports = []string{config.TransportGRPC, config.TransportHTTP}

// With an expired client certificate, sending fails. After its files are replaced, the same exporter delivers the held rows.
func TestExpiredCertificateIsReplaced(t *testing.T) {
	for _, transport := range bothTransports {
		for _, version := range []string{"1.2", "1.3"} {
			t.Run(transport+"/"+version, func(t *testing.T) {
				ca := recvtest.NewCA(t)
				endpoint, clients := tlsReceiver(t, transport, ca, ca.Issue(t, "server", time.Now().Add(time.Hour)).ServerTLS(t))
				dir := t.TempDir()
				cfg := settings(transport, endpoint)
				cfg.Insecure = false
				cfg.TLS = config.TLS{
					CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
					MinVersion: version,
				}
				writeFile(t, cfg.TLS.CAFile, ca.PEM)
				old := ca.Issue(t, "old", time.Now().Add(-time.Hour))
				writeFile(t, cfg.TLS.CertFile, old.Cert)
				writeFile(t, cfg.TLS.KeyFile, old.Key)
				e, logs := open(t, cfg)
				e.Enqueue(message(t, "app", 0))
				require.Eventually(t, func() bool { return e.Stats().Retries > 1 }, 20*time.Second, time.Millisecond)
				require.Empty(t, clients())
				require.Eventually(t, func() bool { return strings.Contains(logs.String(), "sending failed, retrying") }, 20*time.Second, time.Millisecond)

				// As in practice, one file is replaced before the other.
				fresh := ca.Issue(t, "fresh", time.Now().Add(time.Hour))
				writeFile(t, cfg.TLS.CertFile, fresh.Cert)
				require.Eventually(t, func() bool { return strings.Contains(logs.String(), "still using the previous certificates") }, 20*time.Second, time.Millisecond)
				writeFile(t, cfg.TLS.KeyFile, fresh.Key)
				drainAll(t, e)
				require.Equal(t, []string{"fresh"}, clients())
				require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
				stop(t, e)
			})
		}
	}
}

// A receiver with an expired certificate is trusted again after it has a new one. A certificate of another authority is trusted
// after ca_file contains that authority.
func TestReceiversCertificate(t *testing.T) {
	for _, transport := range bothTransports {
		t.Run(transport, func(t *testing.T) {
			ca, other := recvtest.NewCA(t), recvtest.NewCA(t)
			var mu sync.Mutex
			current := ca.Issue(t, "server", time.Now().Add(-time.Minute)).ServerTLS(t)
			server := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				mu.Lock()
				defer mu.Unlock()
				c := current.Clone()
				c.NextProtos = []string{"h2", "http/1.1"}
				return c, nil
			}, Certificates: current.Certificates}
			use := func(pair recvtest.Pair) {
				mu.Lock()
				defer mu.Unlock()
				current = pair.ServerTLS(t)
			}
			endpoint, _ := recvtest.Start(t, transport, server, nil)
			cfg := settings(transport, endpoint)
			cfg.Insecure = false
			cfg.TLS.CAFile = filepath.Join(t.TempDir(), "ca.pem")
			writeFile(t, cfg.TLS.CAFile, ca.PEM)
			e, logs := open(t, cfg)
			e.Enqueue(message(t, "app", 0))
			require.Eventually(t, func() bool { return strings.Contains(logs.String(), "renew the certificate") }, 20*time.Second, time.Millisecond)
			use(other.Issue(t, "server", time.Now().Add(time.Hour)))
			was := e.Stats().Requests
			require.Eventually(t, func() bool { return e.Stats().Requests > was+1 }, 20*time.Second, time.Millisecond)
			require.Zero(t, e.Stats().Rows.Delivered)
			writeFile(t, cfg.TLS.CAFile, append(append([]byte(nil), ca.PEM...), other.PEM...))
			drainAll(t, e)
			require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
			stop(t, e)
		})
	}
}

func TestServerName(t *testing.T) {
	ca := recvtest.NewCA(t)
	server := ca.Issue(t, "otel.example", time.Now().Add(time.Hour)).ServerTLS(t)
	for _, transport := range bothTransports {
		for name, tc := range map[string]struct {
			name      string
			skip      bool
			delivered bool
		}{"right": {"otel.example", false, true}, "wrong": {"other.example", false, false}, "wrong, not verified": {"other.example", true, true}} {
			t.Run(transport+"/"+name, func(t *testing.T) {
				endpoint, _ := recvtest.Start(t, transport, server.Clone(), nil)
				cfg := settings(transport, endpoint)
				cfg.Insecure = false
				cfg.TLS = config.TLS{CAPEM: string(ca.PEM), ServerNameOverride: tc.name, InsecureSkipVerify: tc.skip}
				cfg.Retry.MaxElapsedTime = time.Millisecond
				e, logs := sent(t, cfg)
				require.Equal(t, tc.delivered, balanced(t, e).Rows.Delivered == 10)
				stop(t, e)
				require.Equal(t, !tc.delivered, strings.Contains(logs.String(), "tls.server_name_override"))
			})
		}
	}
}

// Headers and credentials arrive, secrets in files are read again, and no secret shows in log lines.
func TestHeadersAndCredentials(t *testing.T) {
	dir := t.TempDir()
	tokenFile, passwordFile := filepath.Join(dir, "token"), filepath.Join(dir, "password")
	for _, transport := range bothTransports {
		for name, tc := range map[string]struct {
			auth config.Auth
			want []string
		}{
			"bearer token":      {config.Auth{BearerToken: "s3cr3t-token"}, []string{"Bearer s3cr3t-token", "Bearer s3cr3t-token"}},
			"bearer token file": {config.Auth{BearerTokenFile: tokenFile}, []string{"Bearer s3cr3t-one", "Bearer s3cr3t-two"}},
			"password":          {config.Auth{Username: "me", Password: "s3cr3t"}, []string{"Basic bWU6czNjcjN0", "Basic bWU6czNjcjN0"}},
			"password file":     {config.Auth{Username: "me", PasswordFile: passwordFile}, []string{"Basic bWU6czNjcjN0LW9uZQ==", "Basic bWU6czNjcjN0LXR3bw=="}},
		} {
			t.Run(transport+"/"+name, func(t *testing.T) {
				writeFile(t, tokenFile, []byte("s3cr3t-one\n"))
				writeFile(t, passwordFile, []byte("s3cr3t-one\n"))
				// The receiver echoes everything that it received.
				endpoint, requests := recvtest.Start(t, transport, nil, func(_ context.Context, r recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
					return nil, status.Errorf(codes.PermissionDenied, "got %v", r.Metadata)
				})
				cfg := settings(transport, endpoint)
				cfg.Headers = []config.Header{{Key: "X-Scope-OrgID", Value: "tenant-1"}, {Key: "x-api-key", Value: "s3cr3t-key"}}
				cfg.Auth = tc.auth
				e, logs := sent(t, cfg)
				writeFile(t, tokenFile, []byte("s3cr3t-two\n"))
				writeFile(t, passwordFile, []byte("s3cr3t-two\n"))
				e.Enqueue(message(t, "app", 0))
				drainAll(t, e)
				require.NoError(t, os.Remove(tokenFile))
				require.NoError(t, os.Remove(passwordFile))
				e.Enqueue(message(t, "app", 0))
				drainAll(t, e)

				list := requests()
				require.Len(t, list, 3)
				require.Equal(t, []string{tc.want[0]}, list[0].Metadata.Get("authorization"))
				require.Equal(t, []string{tc.want[1]}, list[1].Metadata.Get("authorization"))
				require.Equal(t, []string{tc.want[1]}, list[2].Metadata.Get("authorization"), "a file that is gone: the last value")
				require.Equal(t, []string{"tenant-1"}, list[0].Metadata.Get("x-scope-orgid"))
				stop(t, e)
				require.NotContains(t, logs.String(), "s3cr3t")
				require.NotContains(t, logs.String(), "czNjcjN0")
				require.Contains(t, logs.String(), "check the settings auth and headers")
			})
		}
	}
}
