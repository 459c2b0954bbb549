package otlp

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// TestSecretsStayKnown rotates a token many times. Log lines must still not contain the secrets in the settings.
func TestSecretsStayKnown(t *testing.T) {
	a := NewAuth(config.Exporter{Headers: []config.Header{{Key: "x-api-key", Value: "api-key"}, {Key: "x-honeycomb-team", Value: "hcaik"}}, Auth: config.Auth{Username: "user", Password: "password"}, ProxyURL: "http://me:pr0xy-pass@proxy"})
	for i := range 1000 {
		a.learn("in use always")
		a.learn("api-key")
		a.learn(fmt.Sprint("token ", i))
	}
	secrets := a.Secrets()
	for _, want := range []string{"api-key", "hcaik", "password", basic("user", "password"), "pr0xy-pass", basic("me", "pr0xy-pass"), "in use always", "token 999", "token 950"} {
		require.Contains(t, secrets, want)
	}
	require.Less(t, len(secrets), 100)
	require.Len(t, secrets, len(slices.Compact(slices.Clone(secrets))), "each once")
}

// Log lines must not show any header's value. A header's name does not always show that it contains a credential.
func TestHeaderValuesAreSecrets(t *testing.T) {
	a := NewAuth(config.Exporter{Headers: []config.Header{
		{Key: "x-scope-orgid", Value: "prod"}, {Key: "X-Api-Key", Value: "k3y-value"}, {Key: "authorization", Value: "Basic abcd"},
	}})
	require.ElementsMatch(t, []string{"k3y-value", "Basic abcd", "prod"}, a.Secrets())
}
