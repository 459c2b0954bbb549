package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// Load checks certificates and keys that are given as text.
func TestCertificatesAsText(t *testing.T) {
	ca := recvtest.NewCA(t)
	mine, other := ca.Issue(t, "mine", time.Now().Add(time.Hour)), ca.Issue(t, "other", time.Now().Add(time.Hour))
	const prefix = config.EnvPrefix + "OTLP_"
	load := func(key []byte) error {
		_, err := config.Load(config.Sources{Environ: []string{
			prefix + "ENDPOINT=https://c:4317", prefix + "TLS_CA_PEM=" + string(ca.PEM),
			prefix + "TLS_CERT_PEM=" + string(mine.Cert), prefix + "TLS_KEY_PEM=" + string(key),
		}}).Exporter("otlp")
		return err
	}
	require.NoError(t, load(mine.Key))
	require.EqualError(t, load(other.Key), `exporter "otlp": tls.cert_pem (`+prefix+`TLS_CERT_PEM): the certificate and the key do not match: use the key that the certificate was issued for`)
}
