package export

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// tokenServer is an OAuth 2.0 server with TLS that issues the tokens t0k3n-1, t0k3n-2, … to the client me.
type tokenServer struct {
	url string

	mu      sync.Mutex
	secret  string
	given   int
	forms   []url.Values
	expires int // seconds
	answer  http.HandlerFunc
}

func startTokenServer(t *testing.T, ca *recvtest.CA) *tokenServer {
	s := &tokenServer{secret: "s3cr3t", expires: 3600}
	server := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	server.TLS = ca.Issue(t, "login", time.Now().Add(time.Hour)).ServerTLS(t)
	server.TLS.ClientAuth = tls.NoClientCert
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url = server.URL + "/token"
	return s
}

func (s *tokenServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil {
		s.answer(w, r)
		return
	}
	_ = r.ParseForm() // an empty form is refused
	id, secret, _ := r.BasicAuth()
	if id == "" {
		id, secret = r.Form.Get("client_id"), r.Form.Get("client_secret")
	}
	w.Header().Set("Content-Type", "application/json")
	if id != "me" || secret != s.secret {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_client", "error_description": "it is not " + secret})
		return
	}
	s.given++
	s.forms = append(s.forms, r.Form)
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "t0k3n-" + strconv.Itoa(s.given), "token_type": "Bearer", "expires_in": s.expires})
}

func (s *tokenServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *tokenServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// guarded is a receiver. It accepts requests if good returns true for their authorization.
type guarded struct {
	requests func() []recvtest.Request

	mu   sync.Mutex
	good func(authorization string) bool
}

func (g *guarded) takes(r recvtest.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.good(strings.Join(r.Metadata.Get("authorization"), ","))
}

func (g *guarded) change(good func(string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.good = good
}

// startGuarded starts a receiver and a token server, and returns settings that use both.
func startGuarded(t *testing.T, transport string) (*guarded, *tokenServer, config.Exporter) {
	t.Helper()
	ca := recvtest.NewCA(t)
	tokens := startTokenServer(t, ca)
	g := &guarded{good: func(s string) bool { return strings.HasPrefix(s, "Bearer t0k3n-") }}
	server := ca.Issue(t, "server", time.Now().Add(time.Hour)).ServerTLS(t)
	server.ClientAuth = tls.NoClientCert
	endpoint, requests := recvtest.Start(t, transport, server, func(_ context.Context, r recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		if !g.takes(r) {
			return nil, status.Error(codes.Unauthenticated, "not you")
		}
		return ok()
	})
	g.requests = requests
	cfg := settings(transport, endpoint)
	cfg.Insecure = false
	cfg.TLS.CAPEM = string(ca.PEM)
	cfg.OAuth2 = config.OAuth2{
		TokenURL: config.Secret(tokens.url), ClientID: "me", ClientSecret: "s3cr3t", Scopes: []string{"profiles.write"},
		EndpointParams: []config.Header{{Key: "audience", Value: "otlp"}},
	}
	return g, tokens, cfg
}

func lastAuthorization(g *guarded) string {
	list := g.requests()
	return strings.Join(list[len(list)-1].Metadata.Get("authorization"), ",")
}

// TestOAuth2 requires that a token is fetched when it is needed, and kept while it is valid. After a token expires or is
// refused, another is fetched with the current secret.
func TestOAuth2(t *testing.T) {
	for _, transport := range bothTransports {
		t.Run(transport, func(t *testing.T) {
			g, tokens, cfg := startGuarded(t, transport)
			cfg.OAuth2.ClientSecretFile, cfg.OAuth2.ClientSecret = filepath.Join(t.TempDir(), "secret"), ""
			writeFile(t, cfg.OAuth2.ClientSecretFile, []byte("s3cr3t\n"))
			e, logs := open(t, cfg)
			require.Zero(t, tokens.count(), "nothing was to be sent")
			for range 5 {
				e.Enqueue(message(t, "app", 0))
			}
			drainAll(t, e)
			require.Equal(t, 1, tokens.count(), "one token for all")
			require.Equal(t, "Bearer t0k3n-1", lastAuthorization(g))
			tokens.change(func() {
				require.Equal(t, "client_credentials", tokens.forms[0].Get("grant_type"))
				require.Equal(t, "profiles.write", tokens.forms[0].Get("scope"))
				require.Equal(t, "otlp", tokens.forms[0].Get("audience"))
				tokens.secret = "s3cr3t-2"
			})
			writeFile(t, cfg.OAuth2.ClientSecretFile, []byte("s3cr3t-2\n"))

			g.change(func(s string) bool { return s == "Bearer t0k3n-2" }) // the first token is revoked
			for range 3 {
				e.Enqueue(message(t, "app", 0))
			}
			drainAll(t, e)
			s := balanced(t, e)
			require.Equal(t, int64(80), s.Rows.Delivered, "nothing is lost")
			require.Equal(t, 2, tokens.count())
			require.Equal(t, "Bearer t0k3n-2", lastAuthorization(g))
			stop(t, e)
			require.Contains(t, logs.String(), "requesting a new one")
			require.NotContains(t, logs.String(), "s3cr3t")
			require.NotContains(t, logs.String(), "t0k3n")
		})
	}
}

// A token is replaced before it expires. Later requests pass the secret in the form that the server accepted, and do not try
// other forms again.
func TestOAuth2SecretInTheBody(t *testing.T) {
	_, tokens, cfg := startGuarded(t, config.TransportHTTP)
	failed, given := 0, 0
	tokens.change(func() {
		tokens.answer = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if _, _, header := r.BasicAuth(); header {
				failed++
				http.Error(w, `{"error": "invalid_client"}`, http.StatusUnauthorized)
				return
			}
			given++
			_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "t0k3n-" + strconv.Itoa(given), "expires_in": 1})
		}
	})
	e, _ := open(t, cfg)
	for range 3 {
		e.Enqueue(message(t, "app", 0))
		drainAll(t, e)
	}
	require.Equal(t, int64(30), balanced(t, e).Rows.Delivered)
	tokens.change(func() {
		require.Equal(t, 3, given)
		require.Equal(t, 1, failed)
	})
}

// A token is revoked while several requests are in flight. If a refusal arrives after a new token exists, nothing must be lost.
func TestOAuth2LateRefusal(t *testing.T) {
	_, tokens, cfg := startGuarded(t, config.TransportHTTP)
	underWay, second := make(chan struct{}, 2), make(chan struct{})
	var refused atomic.Int32
	r := recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, r recvtest.Request) {
		if r.Number > 1 && r.Metadata.Get("authorization")[0] == "Bearer t0k3n-1" {
			underWay <- struct{}{}
			if refused.Add(1) == 2 {
				<-second
			}
			for len(underWay) < 2 {
				runtime.Gosched()
			}
			http.Error(w, "not you", http.StatusUnauthorized)
			return
		}
		recvtest.Accept(w, nil)
	}})
	cfg.Endpoint = r.URL
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "first", 0))
	drainAll(t, e)
	e.Enqueue(message(t, "app", 0))
	e.Enqueue(message(t, "app", 0))
	require.Eventually(t, func() bool { return e.Stats().Rows.Delivered == 20 }, 20*time.Second, time.Millisecond)
	close(second)
	drainAll(t, e)
	require.Equal(t, int64(30), balanced(t, e).Rows.Delivered)
	require.Equal(t, 2, tokens.count())
}

// Rows are held while there is no token. The error is logged once, without a secret.
func TestOAuth2WithoutToken(t *testing.T) {
	for _, transport := range bothTransports {
		other := recvtest.NewCA(t)
		for name, tc := range map[string]struct {
			breaks func(*tokenServer, *config.Exporter)
			says   []string
		}{
			"secret":    {func(s *tokenServer, _ *config.Exporter) { s.secret = "new" }, []string{"answered with HTTP status 401", "invalid_client", "check oauth2.client_id and oauth2.client_secret"}},
			"scope":     {answering(`{"error": "invalid_scope"}`, http.StatusBadRequest), []string{"HTTP status 400", "check oauth2.scopes"}},
			"web page":  {answering(`<html>s3cr3t`, http.StatusNotFound), []string{"HTTP status 404", "check oauth2.token_url"}},
			"no token":  {answering(`{}`, http.StatusOK), []string{"no token from", "check oauth2.token_url"}},
			"hostile":   {answering(`{"access_token": "a\nb"}`, http.StatusOK), []string{"cannot be sent"}},
			"redirect":  {redirecting, []string{"HTTP status 307", "check oauth2.token_url"}},
			"authority": {func(_ *tokenServer, c *config.Exporter) { c.TLS.CAPEM = string(other.PEM) }, []string{"no token from", "set tls.ca_file"}},
			"nobody":    {func(_ *tokenServer, c *config.Exporter) { c.OAuth2.TokenURL = "https://127.0.0.1:1/token" }, []string{"no token from the token server https://127.0.0.1:1/token", "connection refused"}},
		} {
			t.Run(transport+"/"+name, func(t *testing.T) {
				g, tokens, cfg := startGuarded(t, transport)
				tokens.change(func() { tc.breaks(tokens, &cfg) })
				e, logs := open(t, cfg)
				e.Enqueue(message(t, "app", 0))
				require.Eventually(t, func() bool { return e.Stats().Retries > 1 }, 20*time.Second, time.Millisecond)
				require.Empty(t, g.requests())
				if name == "secret" {
					tokens.change(func() { tokens.secret = "s3cr3t" })
					drainAll(t, e)
					require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
				}
				stop(t, e)
				for _, says := range tc.says {
					require.Contains(t, logs.String(), says)
				}
				require.NotContains(t, logs.String(), "s3cr3t")
			})
		}
	}
}

func answering(body string, code int) func(*tokenServer, *config.Exporter) {
	return func(s *tokenServer, _ *config.Exporter) {
		s.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
}

func redirecting(s *tokenServer, _ *config.Exporter) {
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}
}

// If a receiver has never accepted a token, the settings are wrong, so there is no retry.
func TestOAuth2RefusedAtOnce(t *testing.T) {
	for _, transport := range bothTransports {
		t.Run(transport, func(t *testing.T) {
			g, _, cfg := startGuarded(t, transport)
			g.change(func(string) bool { return false })
			e, logs := sent(t, cfg)
			require.Equal(t, map[Reason]int64{ReasonRejected: 10}, balanced(t, e).Rows.Dropped)
			stop(t, e)
			require.Contains(t, logs.String(), "check the settings auth and headers")
		})
	}
}

// A token server that hangs blocks only its exporter's requests.
func TestOAuth2ServerHangs(t *testing.T) {
	_, tokens, cfg := startGuarded(t, config.TransportHTTP)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	tokens.change(func() {
		tokens.answer = func(http.ResponseWriter, *http.Request) {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-release
		}
	})
	cfg.Timeout = 50 * time.Millisecond
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "app", 0))
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, e.Shutdown(ctx))
	require.Equal(t, map[Reason]int64{ReasonShutdown: 10}, balanced(t, e).Rows.Dropped)
}
