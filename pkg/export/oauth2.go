package export

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
)

// tokenTimeout bounds one attempt to get a token, beside what is left of the attempt to send.
const tokenTimeout = 10 * time.Second

// tokens gets bearer tokens by OAuth 2.0's client credentials, and keeps each until it ends or the receiver refuses it.
// Safe for concurrent use: one caller fetches, the others wait for it, each no longer than its own context.
type tokens struct {
	cfg   config.OAuth2
	tls   config.TLS // what the token server's certificate is judged by
	proxy proxyFunc
	learn func(secret string)

	fetching chan struct{} // holds one element while somebody fetches; guards source, client and version
	source   *tlsSource    // nil until the first use: it reads files
	client   *http.Client
	version  uint64 // of the certificates that client trusts

	mu      sync.Mutex
	current *oauth2.Token
	worked  string // the last token that the receiver has taken
}

// newTokens returns nil where the settings have no OAuth 2.0. It reads no file.
func newTokens(cfg config.Exporter, learn func(string)) *tokens {
	if cfg.OAuth2.TokenURL == "" {
		return nil
	}
	learn(cfg.OAuth2.ClientSecret)
	for _, p := range cfg.OAuth2.EndpointParams {
		if key := strings.ToLower(p.Key); config.CredentialHeader(key) || strings.Contains(key, "assertion") {
			learn(p.Value)
		}
	}
	return &tokens{
		cfg: cfg.OAuth2, proxy: proxyOf(cfg), learn: learn, fetching: make(chan struct{}, 1),
		// A client certificate, another name and a waived check are for the receiver.
		tls: config.TLS{CAFile: cfg.TLS.CAFile, CAPEM: cfg.TLS.CAPEM, SystemCAs: cfg.TLS.SystemCAs, ReloadInterval: cfg.TLS.ReloadInterval},
	}
}

// tokenError is what went wrong, in the words of an outcome.
type tokenError struct{ what, words, hint string }

func (e *tokenError) Error() string { return e.what }

// check reads the files that the settings name.
func (t *tokens) check() error {
	if t.cfg.ClientSecretFile != "" {
		if _, err := readSecret("oauth2.client_secret_file", t.cfg.ClientSecretFile); err != nil {
			return err
		}
	}
	_, err := buildTLS(t.tls)
	return err
}

// token returns a token to send with.
func (t *tokens) token(ctx context.Context) (string, *tokenError) {
	if v, ok := t.valid(); ok {
		return v, nil
	}
	select {
	case t.fetching <- struct{}{}:
		defer func() { <-t.fetching }()
	case <-ctx.Done():
		return "", &tokenError{what: "no token within the time of an attempt", hint: "check oauth2.token_url, and the way to it"}
	}
	if v, ok := t.valid(); ok { // somebody else has fetched it
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

// fetch asks the token server. The caller holds fetching.
func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, *tokenError) {
	secret := t.cfg.ClientSecret
	if t.cfg.ClientSecretFile != "" {
		var err error
		if secret, err = readSecret("oauth2.client_secret_file", t.cfg.ClientSecretFile); err != nil {
			return nil, &tokenError{what: err.Error()}
		}
		t.learn(secret)
	}
	client, err := t.connect()
	if err != nil {
		return nil, &tokenError{what: err.Error()}
	}
	params := url.Values{}
	for _, p := range t.cfg.EndpointParams {
		params.Set(p.Key, p.Value)
	}
	request := clientcredentials.Config{
		ClientID: t.cfg.ClientID, ClientSecret: secret, TokenURL: t.cfg.TokenURL, Scopes: t.cfg.Scopes, EndpointParams: params,
	}
	fresh, err := request.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err == nil {
		if !printable(fresh.AccessToken) {
			return nil, &tokenError{what: "the token of " + t.shown() + " cannot be sent: it has characters other than printable ASCII"}
		}
		return fresh, nil
	}
	return nil, t.explain(err)
}

// shown is the token server's address for log lines.
func (t *tokens) shown() string {
	u, err := url.Parse(t.cfg.TokenURL)
	if err != nil {
		return "the token server"
	}
	return "the token server " + shownURL(u)
}

// explain says what a failed request for a token means.
func (t *tokens) explain(err error) *tokenError {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, whose query may hold a secret
		}
		e := &tokenError{what: "no token from " + t.shown(), words: err.Error(), hint: "check oauth2.token_url, and the way to it"}
		if has(e.words, "certificate signed by unknown authority") {
			e.hint = "set tls.ca_file to the authority that signed its certificate; with tls.include_system_ca_certs_pool: true the system's are trusted as well"
		}
		return e
	}
	e := &tokenError{
		what:  fmt.Sprintf("no token: %s answered with HTTP status %d", t.shown(), refused.Response.StatusCode),
		words: refused.ErrorCode + " " + refused.ErrorDescription,
		hint:  "check oauth2.client_id and oauth2.client_secret",
	}
	switch refused.ErrorCode {
	case "":
		e.words, e.hint = string(refused.Body), "check oauth2.token_url"
	case "invalid_scope":
		e.hint = "check oauth2.scopes"
	case "invalid_request":
		e.hint = "check oauth2.endpoint_params: many token servers want an audience or a resource"
	}
	return e
}

// connect returns a client that trusts the certificates of now. The caller holds fetching.
func (t *tokens) connect() (*http.Client, error) {
	if t.source == nil {
		source, err := newTLSSource(t.tls, func(error) {}) // it goes on with what it has read before
		if err != nil {
			return nil, err
		}
		t.source = source
	}
	cfg, version := t.source.config()
	if t.client != nil && version == t.version {
		return t.client, nil
	}
	t.version = version
	t.client = &http.Client{
		Timeout: tokenTimeout,
		Transport: &http.Transport{
			Proxy: t.proxy, TLSClientConfig: cfg.Clone(), ForceAttemptHTTP2: true,
			// Tokens are fetched once in a while.
			DisableKeepAlives: true, MaxResponseHeaderBytes: maxHTTPHeaders,
		},
		// A redirect would take the secret to where nobody sent it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return t.client, nil
}

// taken notes that the receiver has taken a token.
func (t *tokens) taken(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.worked = token
}

// refused notes that the receiver has refused a token, so that the next attempt fetches another. It tells whether the
// token had been good before: then it has ended early, and another may do.
func (t *tokens) refused(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && t.current.AccessToken == token {
		t.current = nil
	}
	return t.worked == token
}
