package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

const hidden = "…"

// addressKeys are the settings that are addresses, which can hold a secret: a password, or a query.
var addressKeys = []string{"endpoint", "profiles_endpoint", "oauth2.token_url", "proxy_url"}

// String names the exporter and where it sends, and no secret.
func (e Exporter) String() string {
	return fmt.Sprintf("exporter %q (%s to %s)", e.Name, e.Transport, e.Destination())
}

// GoString is String: %#v shows no secret either.
func (e Exporter) GoString() string { return e.String() }

// String shows the name alone.
func (h Header) String() string { return h.Key + "=" + hidden }

// GoString is String.
func (h Header) GoString() string { return h.String() }

// String says what there is, not its content.
func (a Auth) String() string {
	switch {
	case a.BearerToken != "":
		return "bearer token " + hidden
	case a.BearerTokenFile != "":
		return "bearer token of " + a.BearerTokenFile
	case a.PasswordFile != "":
		return "user " + a.Username + ", password of " + a.PasswordFile
	case a.Username != "" || a.Password != "":
		return "user " + a.Username + ", password " + hidden
	}
	return "none"
}

// GoString is String.
func (a Auth) GoString() string { return a.String() }

// String says who gets tokens where, not with what.
func (o OAuth2) String() string {
	if o.TokenURL == "" {
		return "none"
	}
	return "client " + o.ClientID + " of " + withoutCredentials(o.TokenURL) + ", secret " + hidden
}

// GoString is String.
func (o OAuth2) GoString() string { return o.String() }

// MarshalText is String.
func (o OAuth2) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// String shows no key.
func (t TLS) String() string {
	key := t.KeyFile
	if t.KeyPEM != "" {
		key = hidden
	}
	return fmt.Sprintf("ca %q, certificate %q, key %q", t.CAFile, t.CertFile, key)
}

// GoString is String.
func (t TLS) GoString() string { return t.String() }

// String shows no flag's value, which may be a header.
func (f Flags) String() string { return "flags " + hidden }

// GoString is String.
func (f Flags) GoString() string { return f.String() }

// MarshalText is String: loggers that write JSON show no secret either.
func (e Exporter) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// MarshalText is String.
func (h Header) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// MarshalText is String.
func (a Auth) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// MarshalText is String.
func (t TLS) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalText is String.
func (f Flags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// HideSecrets replaces the secrets of exporters, and of the addresses of debuginfod servers, in v, for programs that print a config, such as
// `ig config view`. What Load then reads from v is no longer usable.
func HideSecrets(v *viper.Viper) {
	if exporters, ok := v.Get(FileKey).(map[string]any); ok {
		hideBelow(v, FileKey, exporters)
	}
	const urls = NamesKey + ".debuginfod.urls"
	switch list := v.Get(urls).(type) {
	case string:
		v.Set(urls, withoutCredentials(list))
	case []any:
		safe := make([]any, len(list))
		for i, u := range list {
			safe[i] = u
			if text, ok := u.(string); ok {
				safe[i] = withoutCredentials(text)
			}
		}
		v.Set(urls, safe)
	}
}

// hideBelow recognises a setting by the end of its path: an exporter's name may have dots, so that the path does not tell where
// it ends. That may hide too much, and never too little.
func hideBelow(v *viper.Viper, path string, m map[string]any) {
	for key, value := range m {
		below := path + "." + key
		if setting := settingAtEnd(below); setting != nil {
			if safe, change := safeToPrint(setting, value); change {
				v.Set(below, safe)
			}
		} else if next, ok := value.(map[string]any); ok {
			hideBelow(v, below, next)
		}
	}
}

func settingAtEnd(path string) *Setting {
	for i := range table {
		if strings.HasSuffix(path, "."+table[i].Key) {
			return &table[i]
		}
	}
	return nil
}

// safeToPrint returns what to print for a value, and whether that is something else.
func safeToPrint(setting *Setting, value any) (any, bool) {
	text, isText := value.(string)
	switch {
	case value == nil || isText && text == "":
		return nil, false
	case setting.Secret && setting.takesMap():
		kvs, err := parsePairs(value)
		if err != nil {
			return hidden, true
		}
		names := make([]string, len(kvs))
		for i, kv := range kvs {
			names[i] = kv.Key + "=" + hidden
		}
		return names, true
	case setting.Secret:
		return hidden, true
	case isText && slices.Contains(addressKeys, setting.Key):
		safe := withoutCredentials(text)
		return safe, safe != text
	}
	return nil, false
}
