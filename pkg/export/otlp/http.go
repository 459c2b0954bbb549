// Package otlp implements the transports otlp-grpc and otlp-http: connections, credentials, and the interpretation of responses.
package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

const (
	userAgent      = "ig-otel-profiles"
	maxHTTPHeaders = 64 << 10
	maxWords       = 64 << 10 // bytes of a receiver's message
	mediaProto     = "application/x-protobuf"
	mediaJSON      = "application/json"

	// maxResponse limits a decompressed response. OTLP leaves the limit to clients (https://opentelemetry.io/docs/specs/otlp/).
	maxResponse = 4 << 20
)

// HTTP is the otlp-http transport. It owns its connections. Send is safe for concurrent use.
type HTTP struct {
	url         *url.URL
	json        bool
	layout      string
	compression string
	auth        *Auth
	warn        func(kind, format string, args ...any)
	diagnosis   diagnosis
	client      *httpClient
	end         context.CancelFunc // closes all connections
}

// shownURL returns u for log lines, without user, password and query, which can be secret.
func shownURL(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// NewHTTP returns an exporter's otlp-http transport. It does not connect.
func NewHTTP(cfg config.Exporter, a *Auth, warn func(kind, format string, args ...any)) (*HTTP, error) {
	u, err := url.Parse(cfg.URL())
	if err != nil {
		return nil, errors.New("endpoint: not a valid URL: use a form such as https://host:4318") // url.Parse's error quotes the URL, which can contain a secret
	}
	s := &HTTP{
		url: u, json: cfg.Encoding == "json", layout: cfg.OTLPVersion, compression: cfg.Compression,
		auth: a, warn: warn, diagnosis: newDiagnosis(cfg, u.Scheme == "http"),
	}
	var source *tlsSource
	if u.Scheme == "https" {
		if source, err = newTLSSource(cfg.TLS, func(err error) { warn("tls reload", "%v", err) }); err != nil {
			return nil, err
		}
	}
	life, end := context.WithCancel(context.Background())
	s.end = end
	s.client = &httpClient{tls: source, transport: func() *http.Transport {
		return &http.Transport{
			Proxy:                  proxyOf(cfg),
			DialContext:            dialUntil(life, &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}),
			ForceAttemptHTTP2:      true,
			MaxIdleConnsPerHost:    max(cfg.Queue.NumConsumers, 1),
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: maxHTTPHeaders,
			// Pings detect a dead connection within seconds. TCP alone needs a quarter of an hour.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
		}
	}}
	return s, nil
}

// httpClient sends requests with the current TLS settings, which change with the certificate files. Connections with older
// settings are closed when they are idle. An httpClient is safe for concurrent use.
type httpClient struct {
	tls       *tlsSource // nil for plain text
	transport func() *http.Transport

	mu      sync.Mutex
	current *http.Client
	version uint64 // version of the TLS settings that current uses
}

func (c *httpClient) get() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	var cfg *tls.Config
	version := c.version
	if c.tls != nil {
		cfg, version = c.tls.config()
	}
	if c.current != nil {
		if version == c.version {
			return c.current
		}
		c.current.CloseIdleConnections()
	}
	transport := c.transport()
	transport.TLSClientConfig = cfg.Clone()
	// Redirects are not followed, because rows and credentials would go to an unconfigured server.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.current, c.version = &http.Client{Transport: transport, CheckRedirect: stay}, version
	return c.current
}

// Send makes one attempt.
func (s *HTTP) Send(ctx context.Context, m wire.Message) (out attempt.Outcome) {
	media, body := mediaProto, m.Body
	var err error
	if s.json {
		media = mediaJSON
		body, err = wire.Alone(ctx, body, wire.JSON)
	} else {
		body, err = wire.ToLayout(body, s.layout)
	}
	if err != nil {
		return attempt.NotEncoded(err)
	}
	if body, err = wire.Compressed(s.compression, body); err != nil {
		return attempt.Outcome{Verdict: attempt.Rejected, What: "the request could not be compressed: " + err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url.String(), bytes.NewReader(body))
	if err != nil {
		return attempt.Outcome{Verdict: attempt.Rejected, What: "the request could not be created"}
	}
	sent, none := s.auth.request(ctx, s.layout, s.warn)
	if none != nil {
		return *none
	}
	req.Header.Set("Content-Type", media)
	req.Header.Set("User-Agent", userAgent)
	if s.compression != wire.Uncompressed {
		req.Header.Set("Content-Encoding", s.compression)
	}
	for _, h := range sent.headers {
		req.Header.Set(h.Key, string(h.Value))
	}
	defer func() { out.Sent = int64(len(body)) }()

	resp, err := s.client.get().Do(req)
	if err != nil {
		// The URL is removed because it can contain a secret.
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return attempt.Outcome{What: "no answer", Words: err.Error(), Hint: s.diagnosis.hint(err.Error())}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	out = s.outcome(resp, answer, err)
	s.auth.observe(sent, resp.StatusCode == http.StatusUnauthorized, &out)
	return out
}

// outcome converts a response into an outcome. answer is the body, at most maxResponse+1 bytes. readErr is the error that ended
// the body early, if any.
func (s *HTTP) outcome(resp *http.Response, answer []byte, readErr error) attempt.Outcome {
	code := resp.StatusCode
	out := attempt.Outcome{Verdict: attempt.Rejected, What: fmt.Sprintf("HTTP status %d", code)}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))

	if code >= 200 && code <= 299 {
		switch {
		case media == "text/html":
			out.What += " with a web page"
			out.Hint = "the endpoint is not an OTLP receiver: check endpoint and profiles_endpoint"
			return out
		case readErr != nil, len(answer) > maxResponse:
			return attempt.Outcome{Verdict: attempt.Accepted, What: fmt.Sprintf("HTTP status %d with a response that was too long or incomplete", code)}
		}
		return httpResponse(media, answer)
	}

	out.Words = statusWords(media, answer)
	out.Hint = s.diagnosis.hint(out.Words)
	if strings.HasPrefix(media, "application/grpc") {
		out.Hint = s.diagnosis.hint("invalid gRPC request")
		return out
	}
	switch {
	case retryableStatus[code]:
		out.Verdict = attempt.Retryable
		if wait := retryAfter(resp.Header.Get("Retry-After"), time.Now()); wait > 0 {
			out.Wait = askedWait(wait)
		}
	case code == http.StatusRequestEntityTooLarge:
		out.Verdict = attempt.TooLarge
	case code >= 300 && code <= 399:
		out.Words = ""
		if u, err := resp.Location(); err == nil {
			out.Words = shownURL(u) // a query can contain a secret
		}
		out.Hint = "redirects are not followed: set endpoint to the receiver's address"
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		out.Hint = "check the settings auth and headers"
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed:
		out.Hint = "the endpoint does not serve " + config.ProfilesPath + ": check endpoint and profiles_endpoint, and whether the receiver has " +
			"profiles turned on (the Collector: --feature-gates=service.profilesSupport)"
	case code == http.StatusBadRequest && s.compression == wire.Zstd && out.Hint == "":
		out.Hint = "the receiver might not support this compression, as Pyroscope and Parca do not: set compression: gzip"
	case code == http.StatusUnsupportedMediaType:
		out.Hint = "the receiver expects another encoding or compression: set encoding and compression"
	}
	return out
}

// httpResponse converts the body of a response to an accepted request into an outcome.
func httpResponse(media string, answer []byte) attempt.Outcome {
	switch {
	case media == mediaJSON:
		return responseOutcome(answer, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal)
	case len(answer) > 0 && media != mediaProto && media != "application/protobuf":
		return attempt.Outcome{Verdict: attempt.Accepted}
	}
	return responseOutcome(answer, proto.Unmarshal)
}

// statusWords returns the message in the body of an error response. The specification requires a google.rpc.Status, but the body
// is often plain text.
func statusWords(media string, answer []byte) string {
	switch media {
	case mediaProto, "application/protobuf":
		var st rpcstatus.Status
		if proto.Unmarshal(answer, &st) == nil && st.GetMessage() != "" {
			return st.GetMessage()
		}
	case mediaJSON:
		var st struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(answer, &st) == nil && st.Message != "" {
			return st.Message
		}
	}
	return string(answer[:min(len(answer), maxWords)])
}

// Close closes the connections.
func (s *HTTP) Close() error {
	s.client.get().CloseIdleConnections()
	s.end()
	return nil
}

// openConn is a connection that dialUntil closes.
type openConn struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (c *openConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// dialUntil returns a dialer whose connections are closed when life ends. If an HTTP/2 connection's last request has just ended,
// CloseIdleConnections leaves the connection open for 90 s.
func dialUntil(life context.Context, d *net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &openConn{conn, context.AfterFunc(life, func() { _ = conn.Close() })}, nil
	}
}
