package otlp

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// minSecret is the length of the shortest secret that is removed from log lines. Removing shorter secrets would damage ordinary
// words.
const minSecret = 4

// Auth returns the headers of each request, including credentials. It reads the secret files for each request, so a rotated
// secret takes effect at once. If a file cannot be read, its last value stays in use. It is safe for concurrent use.
type Auth struct {
	headers []config.Header
	cfg     config.Auth
	tokens  *tokens // nil without OAuth 2.0

	mu       sync.Mutex
	token    string
	password string
	// These secrets are removed from log lines. fixed contains the secrets in the settings, and recent contains the latest
	// secrets from files and token servers.
	fixed, recent []string
}

// NewAuth returns an exporter's credentials. It reads no file, see Check.
func NewAuth(exporter config.Exporter) *Auth {
	cfg := exporter.Auth
	a := &Auth{headers: exporter.Headers, cfg: cfg, token: string(cfg.BearerToken), password: string(cfg.Password)}
	for _, h := range exporter.Headers {
		a.learn(string(h.Value))
	}
	for _, text := range []string{exporter.URL(), string(exporter.OAuth2.TokenURL)} {
		if u, err := url.Parse(text); err == nil {
			a.learn(u.RawQuery) // a receiver's answer can quote it
		}
	}
	a.tokens = newTokens(exporter, a.learn)
	if u := exporter.Proxy(); u != nil && u.User != nil {
		password, _ := u.User.Password()
		a.learn(password)
		a.learn(basic(u.User.Username(), password))
	}
	a.learn(a.token)
	a.learnPassword(a.password)
	a.fixed, a.recent = a.recent, nil
	return a
}

// Check reads the secret files and certificates in the settings, and returns their errors.
func (a *Auth) Check() error {
	err := a.refresh()
	if a.tokens != nil {
		err = errors.Join(err, a.tokens.check())
	}
	return err
}

// refresh reads the secret files. After an error, the last values stay.
func (a *Auth) refresh() error {
	for _, f := range []struct {
		key, file string
		value     *string
		learn     func(string)
	}{{"auth.bearer_token_file", a.cfg.BearerTokenFile, &a.token, a.learn}, {"auth.password_file", a.cfg.PasswordFile, &a.password, a.learnPassword}} {
		if f.file == "" {
			continue
		}
		v, err := readSecret(f.key, f.file)
		if err != nil {
			return err
		}
		a.mu.Lock()
		*f.value = v
		a.mu.Unlock()
		f.learn(v)
	}
	return nil
}

// request holds the headers of one attempt.
type request struct {
	headers []config.Header // from the settings, the protocol and the credentials
	token   string          // if OAuth 2.0 provides the credentials
}

// request returns the headers for a request in the layout of otlpVersion. It can call a token server. If it gets no token, it
// returns the outcome of the attempt.
func (a *Auth) request(ctx context.Context, otlpVersion string, warn func(kind, format string, args ...any)) (request, *attempt.Outcome) {
	if err := a.refresh(); err != nil {
		warn("credentials", "%v: still using the previous value", err)
	}
	r := request{headers: slices.Clone(a.headers)}
	add := func(key, value string) {
		if !slices.ContainsFunc(r.headers, func(h config.Header) bool { return strings.EqualFold(h.Key, key) }) { // otherwise, gRPC would send both
			r.headers = append(r.headers, config.Header{Key: key, Value: config.Secret(value)})
		}
	}
	if wire.Versioned(otlpVersion) {
		add(wire.VersionHeader, wire.Version)
	}
	if a.tokens == nil {
		if value := a.authorization(); value != "" {
			add("authorization", value)
		}
		return r, nil
	}
	token, none := a.tokens.token(ctx)
	if none != nil {
		return request{}, none
	}
	r.token = token
	add("authorization", "Bearer "+token)
	return r, nil
}

// observe handles the response to an attempt. If the receiver rejects a token that it accepted before, the request is retried
// with a new token.
func (a *Auth) observe(sent request, denied bool, out *attempt.Outcome) {
	switch {
	case sent.token == "":
	case denied && a.tokens.refused(sent.token):
		out.Verdict = attempt.Retryable
		out.Hint = "the receiver rejected a token that has not expired: requesting a new one"
	case out.Verdict == attempt.Accepted, out.Verdict == attempt.Partial:
		a.tokens.markAccepted(sent.token)
	}
}

// authorization returns the value of the Authorization header, or "" if there are no credentials.
func (a *Auth) authorization() string {
	a.mu.Lock()
	token, password := a.token, a.password
	a.mu.Unlock()
	switch {
	case token != "":
		return "Bearer " + token
	case a.cfg.Username != "":
		return "Basic " + basic(a.cfg.Username, password)
	}
	return ""
}

func basic(username, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
}

func (a *Auth) learnPassword(password string) {
	if password == "" {
		return
	}
	a.learn(password)
	a.learn(basic(a.cfg.Username, password))
}

func (a *Auth) learn(secret string) {
	if len(secret) < minSecret {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Contains(a.fixed, secret) {
		return
	}
	if i := slices.Index(a.recent, secret); i >= 0 {
		a.recent = slices.Delete(a.recent, i, i+1)
	}
	// The latest secrets are enough, because a receiver can only echo recent data.
	const keep = 64
	if len(a.recent) >= keep {
		a.recent = slices.Delete(a.recent, 0, 1)
	}
	a.recent = append(a.recent, secret)
}

// Secrets returns the secrets to remove from log lines, the longest first. So a secret that contains another is removed as a
// whole.
func (a *Auth) Secrets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Concat(a.fixed, a.recent)
	slices.SortFunc(list, func(x, y string) int { return len(y) - len(x) })
	return list
}
