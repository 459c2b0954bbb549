package otlp

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// minSecret is the length of the shortest secret that is taken out of log lines. Shorter ones protect nothing, and
// their removal would damage ordinary words.
const minSecret = 4

// Auth gives the headers of each request, credentials among them. Secrets in files are read for each request, so a rotated secret
// is used at once. While a file cannot be read, its last value stays in use. It is safe for concurrent use.
type Auth struct {
	headers []config.Header
	cfg     config.Auth
	tokens  *tokens // nil without OAuth 2.0

	mu       sync.Mutex
	token    string
	password string
	// For redaction, it has the secrets of the settings, which are sent for as long as the exporter runs, and the last ones from
	// files and fetches.
	fixed, recent []string
}

// NewAuth reads no file: see Check.
func NewAuth(exporter config.Exporter) *Auth {
	cfg := exporter.Auth
	a := &Auth{headers: exporter.Headers, cfg: cfg, token: string(cfg.BearerToken), password: string(cfg.Password)}
	for _, h := range exporter.Headers {
		a.learn(string(h.Value))
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

// Check reads the secret files and certificates of the settings, and returns their errors.
func (a *Auth) Check() error {
	err := a.refresh()
	if a.tokens != nil {
		err = errors.Join(err, a.tokens.check())
	}
	return err
}

// refresh reads the secret files again. On an error the last values stay.
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

// request is everything that one attempt sends besides its body.
type request struct {
	headers []config.Header // those of the settings, of the protocol, and the credential
	token   string          // if the credential was got by OAuth 2.0
}

// request returns the headers for a request in the layout of an otlp_version. It may ask a token server. Without a token, it
// returns the reason.
func (a *Auth) request(ctx context.Context, otlpVersion string, warn func(kind, format string, args ...any)) (request, *attempt.Outcome) {
	if err := a.refresh(); err != nil {
		warn("credentials", "%v: still using the value read before", err)
	}
	r := request{headers: slices.Clone(a.headers)}
	add := func(key, value string) {
		if !slices.ContainsFunc(r.headers, func(h config.Header) bool { return strings.EqualFold(h.Key, key) }) { // gRPC would send both
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

// observe learns from the answer to an attempt. If a good token is refused now, it has ended early, and the request
// is tried again with another.
func (a *Auth) observe(sent request, denied bool, out *attempt.Outcome) {
	switch {
	case sent.token == "":
	case denied && a.tokens.refused(sent.token):
		out.Verdict = attempt.Retryable
		out.Hint = "the receiver rejected a token that has not expired: fetching another one"
	case out.Verdict == attempt.Accepted, out.Verdict == attempt.Partial:
		a.tokens.markAccepted(sent.token)
	}
}

// authorization is the value of the Authorization header, empty without credentials.
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
	// The last few are enough: a receiver can only echo recent data.
	const keep = 64
	if len(a.recent) >= keep {
		a.recent = slices.Delete(a.recent, 0, 1)
	}
	a.recent = append(a.recent, secret)
}

// Secrets lists the secrets to remove from log lines, longest first, so that a secret that contains
// another is replaced as a whole.
func (a *Auth) Secrets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Concat(a.fixed, a.recent)
	slices.SortFunc(list, func(x, y string) int { return len(y) - len(x) })
	return list
}
