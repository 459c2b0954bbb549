package config

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

const hidden = "…"

// addressKeys lists the settings with addresses. An address can contain a secret: a password or a query.
var addressKeys = []string{"endpoint", "profiles_endpoint", "oauth2.token_url", "proxy_url"}

// String names the exporter and its target, without secrets.
func (e Exporter) String() string {
	return fmt.Sprintf("exporter %q (%s to %s)", e.Name, e.Transport, e.Destination())
}

// GoString returns the same as String.
func (e Exporter) GoString() string { return e.String() }

// MarshalText returns the same as String.
func (e Exporter) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// A Secret is a text that no message or log shows, however it is printed.
type Secret string

// String hides the secret.
func (Secret) String() string { return hidden }

// Format hides the secret, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText hides the secret from loggers that write JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// HideSecrets replaces the secrets of exporters in v, and the credentials in addresses of debuginfod servers. Programs like `ig
// config view` use it to print a config. Load cannot use v afterwards.
func HideSecrets(v *viper.Viper) {
	if exporters, ok := v.Get(FileKey).(map[string]any); ok {
		hideBelow(v, FileKey, exporters)
	}
	const urls = NamesKey + ".debuginfod.urls"
	if v.IsSet(urls) {
		list, err := items(v.Get(urls))
		for i := range list {
			list[i] = withoutCredentials(list[i])
		}
		if err != nil {
			list = []string{hidden}
		}
		v.Set(urls, list)
	}
}

// hideBelow recognises a setting by the end of its path. An exporter's name can contain dots or equal a setting's name, so the
// path does not show where the name ends. So hideBelow can hide too much.
func hideBelow(v *viper.Viper, path string, m map[string]any) {
	for key, value := range m {
		below := path + "." + key
		i := slices.IndexFunc(table, func(s setting) bool { return strings.HasSuffix(below, "."+s.Key) })
		if next, isMap := value.(map[string]any); isMap && (i < 0 || !table[i].Secret) {
			hideBelow(v, below, next)
		} else if i >= 0 {
			v.Set(below, safeToPrint(&table[i], value))
		}
	}
}

// safeToPrint returns the value of a setting without secrets.
func safeToPrint(s *setting, value any) any {
	text, isText := value.(string)
	switch {
	case value == nil || value == "":
	case s.Secret && s.takesMap():
		kvs, err := parsePairs(value)
		if err != nil {
			return hidden
		}
		names := make([]string, len(kvs))
		for i, kv := range kvs {
			names[i] = kv.Key + "=" + hidden
		}
		return names
	case s.Secret:
		return hidden
	case isText && slices.Contains(addressKeys, s.Key):
		return withoutCredentials(text)
	}
	return value
}
