package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

const marker = "s3cr3t"

// TestSecretsNeverShow requires that no message shows a secret, even if its value or type is wrong.
func TestSecretsNeverShow(t *testing.T) {
	for _, s := range table {
		if !s.Secret && !slices.Contains(addressKeys, s.Key) {
			continue
		}
		t.Run(s.Key, func(t *testing.T) {
			values := []string{
				`"` + marker + `"`, `"` + marker + `\n"`, `["` + marker + `"]`, `{a: ["` + marker + `"]}`, `{a: {b: ["` + marker + `"]}}`,
				`["x-a=` + marker + `", "x-a=` + marker + `"]`, `["x-a=` + marker + `\u0001"]`, `{x-a: "` + marker + `é"}`, `["authorization=Bearer ` + marker + `"]`,
			}
			if !s.Secret {
				values = []string{
					`"http://u:` + marker + `@c:4317"`, `"u:` + marker + `@c:4317"`, `"grpc://u:` + marker + `@c"`, `"http://c:4318/p?k=` + marker + `"`,
					`"http://u:` + marker + `@c:4317:1"`, `"dns:///u:` + marker + `@c:4317"`, `"http://u:` + marker + `@"`, `"http://%zz:` + marker + `@c"`,
				}
			}
			for _, transport := range []string{TransportGRPC, TransportHTTP, TransportFile, "smoke"} {
				for _, value := range values {
					group, key, nested := strings.Cut(s.Key, ".")
					setting := group + ": " + value
					if nested {
						setting = group + ": {" + key + ": " + value + "}"
					}
					set := Load(Sources{
						File:    readYAML(t, exportersYAML("prod: {exporter: "+transport+", "+setting+"}")),
						Environ: []string{EnvPrefix + "EDGE_" + envName(s.Key) + "=" + strings.Trim(value, `"`), "OTEL_EXPORTER_OTLP_HEADERS=" + marker, "OTEL_EXPORTER_OTLP_PROFILES_HEADERS=a=" + marker + "%zz"},
						Flags:   Flags{"otel-profiles-headers": "x y=" + marker},
					})
					for _, text := range append(texts(set.Problems()), notices(set)...) {
						require.NotContains(t, text, marker)
					}
					for _, name := range set.Names() {
						_, err := set.Exporter(name)
						require.NotContains(t, fmt.Sprint(err), marker)
					}
				}
			}
		})
	}
}

// TestPrintingShowsNoSecret requires that no way of printing or logging an exporter shows a secret.
func TestPrintingShowsNoSecret(t *testing.T) {
	e := Exporter{
		Name: "prod", Transport: TransportHTTP, Endpoint: "https://c:4318", ProfilesEndpoint: "https://c/p?key=" + marker,
		Headers: []Header{{"x-api-key", marker}},
		Auth:    Auth{BearerToken: marker, Username: "u", Password: marker},
		TLS:     TLS{KeyPEM: marker},
		OAuth2:  OAuth2{TokenURL: "https://login/token?k=" + marker, ClientSecret: marker, EndpointParams: []Header{{"k", marker}}},
	}
	flags := Flags{"otel-profiles-headers": "x-api-key=" + marker}
	basic := Auth{Username: "u", Password: marker}
	for _, v := range []any{e, &e, e.Headers, e.Headers[0], e.Auth, basic, e.OAuth2, e.TLS, flags, []Exporter{e}, map[string]*Exporter{"a": &e}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			require.NotContains(t, fmt.Sprintf(verb, v), marker)
		}
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, string(text), marker)

		var out bytes.Buffer
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		for _, formatter := range []logrus.Formatter{&logrus.JSONFormatter{}, &logrus.TextFormatter{}} {
			log := &logrus.Logger{Out: &out, Formatter: formatter, Level: logrus.InfoLevel, Hooks: logrus.LevelHooks{}}
			log.WithField("v", v).Info("x")
		}
		require.NotEmpty(t, out.String())
		require.NotContains(t, out.String(), marker)
	}
	require.Equal(t, `exporter "prod" (otlp-http to https://c/p?…)`, e.String())
}

// `ig config view` prints the whole config: see cmd/common/config.go of Inspektor Gadget.
func TestHideSecrets(t *testing.T) {
	for _, headers := range []string{
		"{x-a: s3cr3t, x.b: s3cr3t}", "[x-a=s3cr3t, X.b=s3cr3t]", `"x-a=s3cr3t,x-b=s3cr3t"`, "s3cr3t", "[{x-a: s3cr3t}]", "{a: [s3cr3t]}",
	} {
		v := readYAML(t, exportersYAML(`
prod.eu:
  exporter: otlp-http
  endpoint: https://u:s3cr3t@c:4318?k=s3cr3t
  profiles_endpoint: https://c/p?k=s3cr3t
  timeout: 7s
  headers: `+headers+`
  auth: {bearer_token: s3cr3t, password: s3cr3t, username: me}
  oauth2: {client_secret: s3cr3t, endpoint_params: {audience: s3cr3t}, token_url: https://u:s3cr3t@login}
  proxy_url: http://u:s3cr3t@proxy:3128
  tls.key_pem: s3cr3t
  tls: {cert_pem: public}
plain: {endpoint: 'http://c:4317', headers: , auth: {password: ""}}
resource: {endpoint: 'http://c:4317', auth: {password: s3cr3t}, headers: `+headers+`}
`))
		HideSecrets(v)
		out, err := yaml.Marshal(v.AllSettings())
		require.NoError(t, err)
		require.NotContains(t, string(out), marker, headers)
		for _, kept := range []string{"timeout: 7s", "username: me", "cert_pem: public", "https://…@c:4318?…", "http://c:4317"} {
			require.Contains(t, string(out), kept)
		}
	}
	HideSecrets(readYAML(t, "operator: {otel-profiles: {exporters: [s3cr3t]}}"))
	for _, urls := range []string{"'https://u:s3cr3t@d?k=s3cr3t'", "['https://u:s3cr3t@d', 'https://u:s3cr3t@e?k=s3cr3t']"} {
		v := readYAML(t, "operator: {otel-profiles: {names: {debuginfod: {urls: "+urls+"}}}}")
		HideSecrets(v)
		out, err := yaml.Marshal(v.AllSettings())
		require.NoError(t, err)
		require.NotContains(t, string(out), marker)
		require.Contains(t, string(out), "https://…@d")
	}
	v := readYAML(t, "operator: {otel-profiles: {names: {debuginfod: {urls: [{s3cr3t: s3cr3t}]}}}}")
	HideSecrets(v)
	out, err := yaml.Marshal(v.AllSettings())
	require.NoError(t, err)
	require.NotContains(t, string(out), marker, "what is no list of texts")
}
