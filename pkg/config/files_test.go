package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keyPair makes a certificate and its key.
func keyPair(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// A daemon must open no file when it starts. Mistakes in files are found when a gadget runs.
func TestLoadOpensNoFile(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML(
		"prod: {endpoint: 'c:4317', auth: {bearer_token_file: /nowhere}, tls: {ca_file: /nowhere, cert_file: /nowhere, key_file: /nowhere}, sending_queue: {storage: /nowhere/q}}"))})
	require.Empty(t, set.Problems())
	_, err := set.Exporter("prod")
	require.NoError(t, err)
}

// Load checks certificates and keys that are given as text.
func TestCertificatesAsText(t *testing.T) {
	cert, key := keyPair(t)
	_, other := keyPair(t)
	load := func(key []byte) error {
		_, err := Load(Sources{Environ: []string{
			EnvPrefix + "OTLP_ENDPOINT=https://c:4317", EnvPrefix + "OTLP_TLS_CA_PEM=" + string(cert),
			EnvPrefix + "OTLP_TLS_CERT_PEM=" + string(cert), EnvPrefix + "OTLP_TLS_KEY_PEM=" + string(key),
		}}).Exporter("otlp")
		return err
	}
	require.NoError(t, load(key))
	require.EqualError(t, load(other), `exporter "otlp": tls.cert_pem (`+EnvPrefix+`OTLP_TLS_CERT_PEM): the certificate and the key do not match: use the key that the certificate was issued for`)
}
