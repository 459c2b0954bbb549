package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
)

// tokenTimeout limits one request for a token. The attempt's own timeout also applies.
const tokenTimeout = 10 * time.Second

// tokens gets bearer tokens with OAuth 2.0 client credentials. It keeps a token until the token expires or the receiver rejects
// it. It is safe for concurrent use. One caller fetches a token, and other callers wait until their own context ends.
type tokens struct {
	cfg   config.OAuth2
	tls   config.TLS // TLS settings for the connection to the token server
	proxy proxyFunc
	learn func(secret string) // called with each secret, to remove it from log lines

	fetching chan struct{}            // a lock that respects contexts; guards request and client
	request  clientcredentials.Config // kept because it remembers in which form the server accepts the secret
	client   *httpClient              // nil until the first use, because it reads files

	mu           sync.Mutex
	current      *oauth2.Token
	lastAccepted string // the last token that the receiver accepted
}

// newTokens returns nil if the settings do not contain OAuth 2.0. It reads no file.
func newTokens(cfg config.Exporter, learn func(string)) *tokens {
	if cfg.OAuth2.TokenURL == "" {
		return nil
	}
	learn(string(cfg.OAuth2.ClientSecret))
	for _, p := range cfg.OAuth2.EndpointParams {
		if key := strings.ToLower(p.Key); config.CredentialHeader(key) || strings.Contains(key, "assertion") {
			learn(string(p.Value))
		}
	}
	params := url.Values{}
	for _, p := range cfg.OAuth2.EndpointParams {
		params.Set(p.Key, string(p.Value))
	}
	return &tokens{
		request: clientcredentials.Config{
			ClientID: cfg.OAuth2.ClientID, ClientSecret: string(cfg.OAuth2.ClientSecret), TokenURL: string(cfg.OAuth2.TokenURL),
			Scopes: cfg.OAuth2.Scopes, EndpointParams: params,
		},
		cfg: cfg.OAuth2, proxy: proxyOf(cfg), learn: learn, fetching: make(chan struct{}, 1),
		// The token server only gets the trusted certificates. The client certificate, server_name_override and
		// insecure_skip_verify apply to the receiver.
		tls: config.TLS{CAFile: cfg.TLS.CAFile, CAPEM: cfg.TLS.CAPEM, SystemCAs: cfg.TLS.SystemCAs, ReloadInterval: cfg.TLS.ReloadInterval},
	}
}

// check reads the files in the settings and returns their errors.
func (t *tokens) check() error {
	if t.cfg.ClientSecretFile != "" {
		if _, err := readSecret("oauth2.client_secret_file", t.cfg.ClientSecretFile); err != nil {
			return err
		}
	}
	_, err := newTLSSource(t.tls, nil)
	return err
}

// token returns a valid token, and fetches a new token if necessary.
func (t *tokens) token(ctx context.Context) (string, *attempt.Outcome) {
	if v, ok := t.valid(); ok {
		return v, nil
	}
	select {
	case t.fetching <- struct{}{}:
		defer func() { <-t.fetching }()
	case <-ctx.Done():
		return "", &attempt.Outcome{What: "the token server did not answer within timeout", Hint: "check oauth2.token_url, and the connection to it"}
	}
	if v, ok := t.valid(); ok { // another goroutine has fetched a token
		return v, nil
	}
	fresh, err := t.fetch(ctx)
	if err != nil {
		return "", err
	}
	t.learn(fresh.AccessToken)
	t.mu.Lock()
	t.current = fresh
	t.mu.Unlock()
	return fresh.AccessToken, nil
}

func (t *tokens) valid() (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.current.Valid() {
		return "", false
	}
	return t.current.AccessToken, true
}

// fetch requests a token from the token server. The caller holds fetching.
func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, *attempt.Outcome) {
	if t.cfg.ClientSecretFile != "" {
		secret, err := readSecret("oauth2.client_secret_file", t.cfg.ClientSecretFile)
		if err != nil {
			return nil, &attempt.Outcome{What: err.Error()}
		}
		t.learn(secret)
		t.request.ClientSecret = secret
	}
	client, err := t.connect()
	if err != nil {
		return nil, &attempt.Outcome{What: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	fresh, err := t.request.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err == nil {
		if !config.Printable(fresh.AccessToken) {
			return nil, &attempt.Outcome{What: "the token from " + t.shown() + " cannot be sent, because it has characters other than printable ASCII"}
		}
		return fresh, nil
	}
	return nil, t.explain(err)
}

// shown returns the token server's address for log lines.
func (t *tokens) shown() string {
	u, err := url.Parse(string(t.cfg.TokenURL))
	if err != nil {
		return "the token server"
	}
	return "the token server " + shownURL(u)
}

// explain converts the error of a token request into the outcome of the attempt that needs the token.
func (t *tokens) explain(err error) *attempt.Outcome {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, because its query can contain a secret
		}
		e := &attempt.Outcome{What: "no token from " + t.shown(), Words: err.Error(), Hint: "check oauth2.token_url, and the connection to it"}
		if has(e.Words, "certificate signed by unknown authority") {
			e.Hint = "set tls.ca_file to the authority that signed its certificate; tls.include_system_ca_certs_pool: true also trusts the system's authorities"
		}
		return e
	}
	e := &attempt.Outcome{
		What:  fmt.Sprintf("no token: %s answered with HTTP status %d", t.shown(), refused.Response.StatusCode),
		Words: refused.ErrorCode + " " + refused.ErrorDescription,
		Hint:  "check oauth2.client_id and oauth2.client_secret",
	}
	switch refused.ErrorCode {
	case "":
		e.Words, e.Hint = string(refused.Body), "check oauth2.token_url"
	case "invalid_scope":
		e.Hint = "check oauth2.scopes"
	case "invalid_request":
		e.Hint = "check oauth2.endpoint_params: many token servers require an audience or a resource"
	}
	return e
}

// connect returns a client that trusts the current content of the certificate files. The caller holds fetching.
func (t *tokens) connect() (*http.Client, error) {
	if t.client == nil {
		source, err := newTLSSource(t.tls, func(error) {}) // if a later read fails, it keeps the old certificates
		if err != nil {
			return nil, err
		}
		t.client = &httpClient{tls: source, transport: func() *http.Transport {
			// Tokens are fetched too rarely to keep a connection open.
			return &http.Transport{Proxy: t.proxy, ForceAttemptHTTP2: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHTTPHeaders}
		}}
	}
	return t.client.get(), nil
}

// markAccepted records that the receiver has accepted a token.
func (t *tokens) markAccepted(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastAccepted = token
}

// refused records that the receiver has rejected a token. The next attempt then fetches another token. refused reports whether
// a new token can work. This is the case if the receiver accepted this token before, or if another token is now current.
func (t *tokens) refused(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil || t.current.AccessToken != token {
		return true
	}
	t.current = nil
	return t.lastAccepted == token
}
