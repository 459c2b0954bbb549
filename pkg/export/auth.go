package export

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// minSecret is the length of the shortest secret that is taken out of log lines. Shorter ones protect nothing, and
// everyday words that contain them would go with them.
const minSecret = 4

// auth gives the headers of each request, credentials among them. Secrets in files are read for
// each request, so that a rotated one is used at once; while a file cannot be read, the last
// value goes on being used.
type auth struct {
	headers []config.Header
	cfg     config.Auth
	tokens  *tokens // nil without OAuth 2.0

	mu       sync.Mutex
	token    string
	password string
	// For redaction: the secrets of the settings, which are sent for as long as the exporter runs, and the last ones that
	// were read or fetched.
	fixed, recent []string
}

// newAuth reads no file: see refresh.
func newAuth(exporter config.Exporter) *auth {
	cfg := exporter.Auth
	a := &auth{headers: exporter.Headers, cfg: cfg, token: string(cfg.BearerToken), password: string(cfg.Password)}
	for _, h := range exporter.Headers {
		a.learn(string(h.Value))
	}
	a.tokens = newTokens(exporter, a.learn)
	if u := proxyURL(exporter); u != nil && u.User != nil {
		password, _ := u.User.Password()
		a.learn(password)
		a.learn(basic(u.User.Username(), password))
	}
	a.learn(a.token)
	a.learnPassword(a.password)
	a.fixed, a.recent = a.recent, nil
	return a
}

// has tells whether the settings have this header, which may be there once only.
func (a *auth) has(key string) bool {
	return slices.ContainsFunc(a.headers, func(h config.Header) bool { return strings.EqualFold(h.Key, key) })
}

// refresh reads the secret files again. On an error the last values stay.
func (a *auth) refresh() error {
	if a.cfg.BearerTokenFile != "" {
		v, err := readSecret("auth.bearer_token_file", a.cfg.BearerTokenFile)
		if err != nil {
			return err
		}
		a.mu.Lock()
		a.token = v
		a.mu.Unlock()
		a.learn(v)
	}
	if a.cfg.PasswordFile != "" {
		v, err := readSecret("auth.password_file", a.cfg.PasswordFile)
		if err != nil {
			return err
		}
		a.mu.Lock()
		a.password = v
		a.mu.Unlock()
		a.learnPassword(v)
	}
	return nil
}

// credential is what one attempt to send authenticates with.
type credential struct {
	header string // the value of the Authorization header; empty without credentials
	token  string // if it was got by OAuth 2.0
}

// credential returns what to send, for which it may have to ask a token server.
func (a *auth) credential(ctx context.Context) (credential, *tokenError) {
	if a.tokens == nil {
		return credential{header: a.authorization()}, nil
	}
	token, err := a.tokens.token(ctx)
	if err != nil {
		return credential{}, err
	}
	return credential{header: "Bearer " + token, token: token}, nil
}

// observe learns from the answer to an attempt. A token that was good before and is refused now has ended early: the
// request is tried again, with another.
func (a *auth) observe(used credential, denied bool, out *outcome) {
	switch {
	case used.token == "":
	case denied && a.tokens.refused(used.token):
		out.verdict = retryable
		out.hint = "the token has ended before its time: another one is fetched"
	case out.verdict == accepted, out.verdict == partial:
		a.tokens.markAccepted(used.token)
	}
}

// noToken is the outcome of an attempt for which there was no token.
func noToken(err *tokenError) outcome {
	return outcome{verdict: retryable, what: err.what, words: err.words, hint: err.hint}
}

// authorization is the value of the Authorization header, empty without credentials.
func (a *auth) authorization() string {
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

func (a *auth) learnPassword(password string) {
	if password == "" {
		return
	}
	a.learn(password)
	a.learn(basic(a.cfg.Username, password))
}

func (a *auth) learn(secret string) {
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
	// The last few are enough: a receiver can only echo what it was sent of late.
	const keep = 64
	if len(a.recent) >= keep {
		a.recent = slices.Delete(a.recent, 0, 1)
	}
	a.recent = append(a.recent, secret)
}

// secrets lists what must not show in a log line, longest first, so that one which contains
// another is replaced as a whole.
func (a *auth) secrets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := slices.Concat(a.fixed, a.recent)
	slices.SortFunc(list, func(x, y string) int { return len(y) - len(x) })
	return list
}
