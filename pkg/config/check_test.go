package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
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

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, data []byte) string {
		require.NoError(t, os.WriteFile(in(name), data, 0o600))
		return in(name)
	}
	certPEM, keyPEM := keyPair(t)
	_, otherKeyPEM := keyPair(t)
	cert, key, otherKey := write("cert.pem", certPEM), write("key.pem", keyPEM), write("other.pem", otherKeyPEM)
	token, empty, lines := write("token", []byte(" s3cr3t\n")), write("empty", []byte("\n")), write("lines", []byte("s3cr3t\ns3cr3t"))
	huge := write("huge", make([]byte, maxSecretFile+1))
	pipe := in("pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	folder := in("folder")
	require.NoError(t, os.Mkdir(folder, 0o700))

	grpc := func(change func(*Exporter)) Exporter {
		e := Exporter{Name: "prod", Transport: TransportGRPC, Endpoint: "c:4317"}
		change(&e)
		return e
	}
	file := func(path string) Exporter { return Exporter{Name: "prod", Transport: TransportFile, Path: path} }
	tlsOf := func(tls TLS) Exporter { return grpc(func(e *Exporter) { e.TLS = tls }) }
	auth := func(auth Auth) Exporter { return grpc(func(e *Exporter) { e.Auth = auth }) }
	storage := func(path string) Exporter { return grpc(func(e *Exporter) { e.Queue.Storage = path }) }

	for name, test := range map[string]struct {
		e    Exporter
		want string // "" is no error
	}{
		"nothing named":      {grpc(func(*Exporter) {}), ""},
		"files":              {tlsOf(TLS{CAFile: cert, CertFile: cert, KeyFile: key}), ""},
		"file and text":      {tlsOf(TLS{CertFile: cert, KeyPEM: string(keyPEM)}), ""},
		"token":              {auth(Auth{BearerTokenFile: token}), ""},
		"password":           {auth(Auth{Username: "u", PasswordFile: token}), ""},
		"folder":             {storage(folder), ""},
		"folder to be made":  {storage(in("new")), ""},
		"output":             {file(in("profiles.jsonl")), ""},
		"output that exists": {file(token), ""},
		"plain text": {
			grpc(func(e *Exporter) { e.Insecure, e.TLS = true, TLS{CAFile: "/nowhere"} }),
			"",
		},

		"no CA": {
			tlsOf(TLS{CAFile: in("none")}),
			`tls.ca_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container that is the container's), or write the content as tls.ca_pem`,
		},
		"CA without certificate": {
			tlsOf(TLS{CAFile: key}),
			`tls.ca_file: ` + key + ` holds no certificate, takes PEM (-----BEGIN CERTIFICATE-----)`,
		},
		"folder for CA": {tlsOf(TLS{CAFile: folder}), `tls.ca_file: ` + folder + ` cannot be read: it is not a file`},
		"mismatch": {
			tlsOf(TLS{CertFile: cert, KeyFile: otherKey}),
			`tls.cert_file: ` + cert + ` and ` + otherKey + `: the certificate and the key do not belong together: write the key that the certificate was made for`,
		},
		"mismatch with text": {
			tlsOf(TLS{CertFile: cert, KeyPEM: string(otherKeyPEM)}),
			`tls.cert_file: ` + cert + ` and tls.key_pem: the certificate and the key do not belong together: write the key that the certificate was made for`,
		},
		"swapped": {
			tlsOf(TLS{CertFile: key, KeyFile: cert}),
			`tls.cert_file: ` + key + ` and ` + cert + `: there is no certificate, takes PEM (-----BEGIN CERTIFICATE-----)`,
		},
		"no key in file": {
			tlsOf(TLS{CertFile: cert, KeyFile: token}),
			`tls.cert_file: ` + cert + ` and ` + token + `: there is no key that can be read, takes PEM without a passphrase (-----BEGIN PRIVATE KEY-----)`,
		},
		"two at once": {
			grpc(func(e *Exporter) { e.TLS.CAFile, e.Auth.BearerTokenFile = in("none"), in("none") }),
			`tls.ca_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container that is the container's), or write the content as tls.ca_pem` + "\n" +
				`exporter "prod": auth.bearer_token_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container that is the container's), or write the content as auth.bearer_token`,
		},
		"empty token": {auth(Auth{BearerTokenFile: empty}), `auth.bearer_token_file: ` + empty + ` is empty: it takes the secret and nothing else`},
		"token with lines": {
			auth(Auth{BearerTokenFile: lines}),
			`auth.bearer_token_file: ` + lines + ` holds more than one line, or characters other than printable ASCII: it takes the secret and nothing else`,
		},
		"huge password":     {auth(Auth{Username: "u", PasswordFile: huge}), `auth.password_file: ` + huge + ` cannot be read: it is larger than 64KiB`},
		"pipe":              {auth(Auth{BearerTokenFile: pipe}), `auth.bearer_token_file: ` + pipe + ` cannot be read: it is not a file`},
		"file for folder":   {storage(token), `sending_queue.storage: ` + token + ` is not a folder: write a folder that only this process uses`},
		"folder in nothing": {storage(in("none/q")), `sending_queue.storage: ` + in("none/q") + ` cannot be made: the folder ` + in("none") + `: no such file or directory`},
		"folder in a file":  {storage(token + "/q"), `sending_queue.storage: ` + token + `/q cannot be used: not a directory`},
		"output to folder":  {file(folder), `path: ` + folder + ` is a folder: write the path of a file in it`},
		"output in nothing": {file(in("none/p")), `path: ` + in("none/p") + ` cannot be made: the folder ` + in("none") + `: no such file or directory`},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.e.Check()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, `exporter "prod": `+test.want)
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

func TestCheckWithoutPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("t"), 0o000))
	err := Exporter{Transport: TransportGRPC, Auth: Auth{BearerTokenFile: file}}.Check()
	require.ErrorContains(t, err, "give that user the permission, or write the content as auth.bearer_token")
}

// A daemon's start must open no file: what is wrong there is found when a gadget asks.
func TestLoadOpensNoFile(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML(
		"prod: {endpoint: 'c:4317', auth: {bearer_token_file: /nowhere}, tls: {ca_file: /nowhere, cert_file: /nowhere, key_file: /nowhere}, sending_queue: {storage: /nowhere/q}}"))})
	require.Empty(t, set.Problems())
	e, err := set.Exporter("prod")
	require.NoError(t, err)
	require.Error(t, e.Check())
}

// Certificates and keys as text are checked by Load.
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
	require.EqualError(t, load(other), `exporter "otlp": tls.cert_pem (`+EnvPrefix+`OTLP_TLS_CERT_PEM): the certificate and the key do not belong together: write the key that the certificate was made for`)
}
