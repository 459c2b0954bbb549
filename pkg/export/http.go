package export

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

	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

const (
	maxHTTPHeaders = 64 << 10
	mediaProto     = "application/x-protobuf"
	mediaJSON      = "application/json"
)

// httpSender is the otlp-http transport. It owns its connections. send is safe for concurrent use.
type httpSender struct {
	url         *url.URL
	json        bool
	layout      string
	compression string
	userAgent   string
	auth        *auth
	log         *eventLog
	consumers   int
	diagnosis   diagnosis
	tls         *tlsSource // nil for plain text
	proxy       proxyFunc

	mu      sync.Mutex
	client  *http.Client
	version uint64 // of the TLS settings that client was made with
}

// shownURL returns u for log lines, without what may be secret: user, password and query.
func shownURL(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func newHTTPSender(cfg config.Exporter, a *auth, log *eventLog, userAgent string) (*httpSender, error) {
	u, err := url.Parse(cfg.URL())
	if err != nil {
		return nil, errors.New("endpoint: not a URL") // url.Parse's error quotes the URL, which may hold a secret
	}
	s := &httpSender{
		url: u, json: cfg.Encoding == "json", layout: cfg.OTLPVersion, compression: cfg.Compression, userAgent: userAgent,
		auth: a, log: log, consumers: max(cfg.Queue.NumConsumers, 1), diagnosis: newDiagnosis(cfg, u.Scheme == "http"), proxy: proxyOf(cfg),
	}
	if u.Scheme == "https" {
		s.tls, err = newTLSSource(cfg.TLS, func(err error) { log.warnf("tls reload", "%v", err) })
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// current returns a client with the current TLS settings, which change when certificate files do. Connections
// that were made with older ones end when they are idle.
func (s *httpSender) current() *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tlsConfig *tls.Config
	if s.tls != nil {
		cfg, version := s.tls.config()
		if s.client != nil && version == s.version {
			return s.client
		}
		s.version = version
		tlsConfig = cfg.Clone()
	} else if s.client != nil {
		return s.client
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	transport := &http.Transport{
		Proxy:                  s.proxy,
		DialContext:            (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        tlsConfig,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    s.consumers,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHTTPHeaders,
		// Pings find a dead connection within seconds; TCP alone takes a quarter of an hour.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	s.client = &http.Client{
		Transport: transport,
		// Redirects are not followed: rows and credentials would go to a place that nobody has configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s.client
}

func (s *httpSender) send(ctx context.Context, body []byte) (out outcome) {
	media := mediaProto
	if s.json {
		var err error
		if body, err = encoded(ctx, body, requestJSON); err != nil {
			return notEncoded(err)
		}
		media = mediaJSON
	} else {
		var err error
		if body, err = toLayout(body, s.layout); err != nil {
			return notEncoded(err)
		}
	}
	body, err := compressed(s.compression, body)
	if err != nil {
		return outcome{verdict: rejected, what: "the request could not be compressed: " + err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url.String(), bytes.NewReader(body))
	if err != nil {
		return outcome{verdict: rejected, what: "the request could not be made"}
	}
	if err := s.auth.refresh(); err != nil {
		s.log.warnf("credentials", "%v: going on with the value read before", err)
	}
	used, noCredential := s.auth.credential(ctx)
	if noCredential != nil {
		return noToken(noCredential)
	}
	s.setHeaders(req, media, used)
	defer func() { out.sent = int64(len(body)) }()

	resp, err := s.current().Do(req)
	if err != nil {
		// Without the URL, which may hold a secret.
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return outcome{verdict: retryable, what: "no answer", words: err.Error(), hint: s.diagnosis.hint(err.Error())}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	out = s.outcome(resp, answer, err)
	s.auth.observe(used, resp.StatusCode == http.StatusUnauthorized, &out)
	return out
}

func (s *httpSender) setHeaders(req *http.Request, media string, used credential) {
	req.Header.Set("Content-Type", media)
	req.Header.Set("User-Agent", s.userAgent)
	if s.compression != compressNone {
		req.Header.Set("Content-Encoding", s.compression)
	}
	if versioned(s.layout) {
		req.Header.Set(versionHeader, profilesVersion)
	}
	for _, h := range s.auth.headers {
		req.Header.Set(h.Key, string(h.Value))
	}
	if used.header != "" {
		req.Header.Set("Authorization", used.header)
	}
}

// outcome turns a response into an outcome. answer is the body, of at most maxResponse+1 bytes; readErr is why it
// could not be read to its end, if so.
func (s *httpSender) outcome(resp *http.Response, answer []byte, readErr error) outcome {
	code := resp.StatusCode
	out := outcome{verdict: rejected, what: fmt.Sprintf("HTTP status %d", code)}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))

	if code >= 200 && code <= 299 {
		switch {
		case media == "text/html":
			out.what += " with a web page"
			out.hint = "the endpoint is no OTLP receiver: check endpoint and profiles_endpoint"
			return out
		case readErr != nil, len(answer) > maxResponse:
			return outcome{verdict: accepted, what: fmt.Sprintf("HTTP status %d with a response that was too long or broke off", code)}
		}
		return httpResponse(media, answer)
	}

	out.words = statusWords(media, answer)
	out.hint = s.diagnosis.hint(out.words)
	if strings.HasPrefix(media, "application/grpc") {
		out.hint = s.diagnosis.hint("invalid gRPC request")
		return out
	}
	switch {
	case retryableStatus[code]:
		out.verdict = retryable
		if wait := retryAfter(resp.Header.Get("Retry-After"), time.Now()); wait > 0 {
			out.wait = askedWait(wait)
		}
	case code == http.StatusRequestEntityTooLarge:
		out.verdict = tooLarge
	case code >= 300 && code <= 399:
		out.words = resp.Header.Get("Location")
		out.hint = "redirects are not followed: set endpoint to where the receiver is"
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		out.hint = "check auth and headers"
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed:
		out.hint = "the endpoint does not know " + config.ProfilesPath + ": check endpoint and profiles_endpoint, and whether the receiver has " +
			"profiles turned on (the Collector: --feature-gates=service.profilesSupport)"
	case code == http.StatusBadRequest && s.compression == compressZstd && out.hint == "":
		out.hint = "the receiver may not take this compression, as Pyroscope and Parca do not: set compression: gzip"
	case code == http.StatusUnsupportedMediaType:
		out.hint = "the receiver takes another encoding or compression: set encoding and compression"
	}
	return out
}

// httpResponse turns the body of the response to an accepted request into an outcome.
func httpResponse(media string, answer []byte) outcome {
	if media != mediaJSON {
		if len(answer) > 0 && media != mediaProto && media != "application/protobuf" {
			return outcome{verdict: accepted}
		}
		return responseOutcome(answer)
	}
	var msg colprofiles.ExportProfilesServiceResponse
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(answer, &msg); err != nil {
		return outcome{verdict: accepted, what: "a response that is no ExportProfilesServiceResponse", hint: "check that the endpoint is an OTLP receiver"}
	}
	return partialOutcome(msg.GetPartialSuccess())
}

// statusWords returns the message in the body of a failure. By the specification the body is a google.rpc.Status,
// but often it is plain text.
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
	return string(answer[:min(len(answer), redactScope)])
}

func (s *httpSender) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	return nil
}
