package export

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// Errors in files that the settings name are reported with the name of the setting.
func TestNamedFiles(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, data []byte) string {
		require.NoError(t, os.WriteFile(in(name), data, 0o600))
		return in(name)
	}
	ca := recvtest.NewCA(t)
	pair, other := ca.Issue(t, "a", time.Now().Add(time.Hour)), ca.Issue(t, "b", time.Now().Add(time.Hour))
	certPEM, keyPEM, otherKeyPEM := pair.Cert, pair.Key, other.Key
	cert, key, otherKey := write("cert.pem", certPEM), write("key.pem", keyPEM), write("other.pem", otherKeyPEM)
	token, empty, lines := write("token", []byte(" s3cr3t\n")), write("empty", []byte("\n")), write("lines", []byte("s3cr3t\ns3cr3t"))
	huge := write("huge", make([]byte, 64<<10+1))
	pipe := in("pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	folder := in("folder")
	require.NoError(t, os.Mkdir(folder, 0o700))

	grpc := func(change func(*config.Exporter)) config.Exporter {
		e := config.Exporter{Name: "prod", Transport: config.TransportGRPC, Endpoint: "c:4317"}
		change(&e)
		return e
	}
	toFile := func(path string) config.Exporter {
		return config.Exporter{Name: "prod", Transport: config.TransportFile, Path: path}
	}
	tlsOf := func(tls config.TLS) config.Exporter { return grpc(func(e *config.Exporter) { e.TLS = tls }) }
	auth := func(auth config.Auth) config.Exporter { return grpc(func(e *config.Exporter) { e.Auth = auth }) }
	storage := func(path string) config.Exporter { return grpc(func(e *config.Exporter) { e.Queue.Storage = path }) }

	for name, test := range map[string]struct {
		e    config.Exporter
		want string // "" means no error
	}{
		"nothing named":      {grpc(func(*config.Exporter) {}), ""},
		"files":              {tlsOf(config.TLS{CAFile: cert, CertFile: cert, KeyFile: key}), ""},
		"file and text":      {tlsOf(config.TLS{CertFile: cert, KeyPEM: config.Secret(keyPEM)}), ""},
		"token":              {auth(config.Auth{BearerTokenFile: token}), ""},
		"password":           {auth(config.Auth{Username: "u", PasswordFile: token}), ""},
		"folder":             {storage(folder), ""},
		"folder to be made":  {storage(in("new")), ""},
		"output":             {toFile(in("profiles.jsonl")), ""},
		"output that exists": {toFile(token), ""},
		"plain text": {
			grpc(func(e *config.Exporter) { e.Insecure, e.TLS = true, config.TLS{CAFile: "/nowhere"} }),
			"",
		},

		"balancer": {grpc(func(e *config.Exporter) { e.Insecure, e.BalancerName = true, "no_such" }), `endpoint "c:4317": grpc: the provided default service config is invalid: no supported policies found in config: [{"no_such":{}}]`},
		"HTTP": {
			config.Exporter{Name: "prod", Transport: config.TransportHTTP, Endpoint: "https://c", TLS: config.TLS{CertFile: cert, KeyFile: otherKey}},
			`tls.cert_file: ` + cert + ` and ` + otherKey + `: the certificate and the key do not match: use the key that the certificate was issued for`,
		},
		"no CA": {
			tlsOf(config.TLS{CAFile: in("none")}),
			`tls.ca_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container, the path in the container), or write the content as tls.ca_pem`,
		},
		"CA without certificate": {
			tlsOf(config.TLS{CAFile: key}),
			`tls.ca_file: ` + key + ` has no certificate: write PEM (-----BEGIN CERTIFICATE-----)`,
		},
		"folder for CA": {tlsOf(config.TLS{CAFile: folder}), `tls.ca_file: ` + folder + ` cannot be read: it is not a file`},
		"mismatch": {
			tlsOf(config.TLS{CertFile: cert, KeyFile: otherKey}),
			`tls.cert_file: ` + cert + ` and ` + otherKey + `: the certificate and the key do not match: use the key that the certificate was issued for`,
		},
		"mismatch with text": {
			tlsOf(config.TLS{CertFile: cert, KeyPEM: config.Secret(otherKeyPEM)}),
			`tls.cert_file: ` + cert + ` and tls.key_pem: the certificate and the key do not match: use the key that the certificate was issued for`,
		},
		"swapped": {
			tlsOf(config.TLS{CertFile: key, KeyFile: cert}),
			`tls.cert_file: ` + key + ` and ` + cert + `: found no certificate, expected PEM (-----BEGIN CERTIFICATE-----)`,
		},
		"no key in file": {
			tlsOf(config.TLS{CertFile: cert, KeyFile: token}),
			`tls.cert_file: ` + cert + ` and ` + token + `: found no readable key, expected PEM without a passphrase (-----BEGIN PRIVATE KEY-----)`,
		},
		"two at once": {
			grpc(func(e *config.Exporter) { e.TLS.CAFile, e.Auth.BearerTokenFile = in("none"), in("none") }),
			`tls.ca_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container, the path in the container), or write the content as tls.ca_pem; auth.bearer_token_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container, the path in the container), or write the content as auth.bearer_token`,
		},
		"empty token": {auth(config.Auth{BearerTokenFile: empty}), `auth.bearer_token_file: ` + empty + ` is empty: write only the secret`},
		"token with lines": {
			auth(config.Auth{BearerTokenFile: lines}),
			`auth.bearer_token_file: ` + lines + ` has more than one line, or characters other than printable ASCII: write only the secret`,
		},
		"no client secret": {
			grpc(func(e *config.Exporter) { e.OAuth2.TokenURL, e.OAuth2.ClientSecretFile = "https://c", in("none") }),
			`oauth2.client_secret_file: ` + in("none") + ` does not exist: write the path as this process sees it (in a container, the path in the container), or write the content as oauth2.client_secret`,
		},
		"huge password":     {auth(config.Auth{Username: "u", PasswordFile: huge}), `auth.password_file: ` + huge + ` cannot be read: it is larger than 64 KiB`},
		"pipe":              {auth(config.Auth{BearerTokenFile: pipe}), `auth.bearer_token_file: ` + pipe + ` cannot be read: it is not a file`},
		"file for folder":   {storage(token), `sending_queue.storage: mkdir ` + token + `: not a directory`},
		"folder in nothing": {storage(in("made/q")), ""},
		"pprof to a folder": {config.Exporter{Name: "prod", Transport: config.TransportFile, Path: folder, Format: "pprof"}, ""},
		"folder in a file":  {storage(token + "/q"), `sending_queue.storage: mkdir ` + token + `: not a directory`},
		"output to folder":  {toFile(folder), `path: ` + folder + ` is a folder: write the path of a file in it`},
		"output in nothing": {toFile(in("none/p")), `path: ` + in("none/p") + ` cannot be created: the folder ` + in("none") + `: no such file or directory`},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := opened(test.e, Options{})
			if test.want == "" {
				require.NoError(t, err)
				stop(t, e)
				return
			}
			require.EqualError(t, err, test.want)
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

// Two exporters on one machine share a folder, and a third one takes over their messages.
func TestExportersShareAStorageFolder(t *testing.T) {
	cfg := withStorage(t, "127.0.0.1:1")
	first, _ := open(t, cfg)
	second, _ := open(t, cfg)
	first.Enqueue(message(t, "first", 0))
	second.Enqueue(message(t, "second", 0))
	settled(t, first)
	settled(t, second)
	stop(t, second)
	third, _ := open(t, cfg)
	require.Equal(t, int64(10), third.Stats().Rows.Recovered, "what the second left, not what the first holds")
	stop(t, third)
	stop(t, first)

	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg.Endpoint = r.Addr
	last, _ := open(t, cfg)
	drainAll(t, last)
	require.ElementsMatch(t, []string{"first", "second"}, r.Names())
	balanced(t, last)
	stop(t, last)
	require.Empty(t, storedFiles(t, cfg.Queue.Storage))
	require.Empty(t, storedFiles(t, filepath.Join(cfg.Queue.Storage, "2")))
}

// An exporter takes messages before it can open its files, and delivers them afterwards.
func TestExporterWaitsForFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := withStorage(t, "")
		e := startWith(t, cfg, &outageSender{down: true})
		e.Enqueue(message(t, "stored", 0))
		synctest.Wait()
		require.NoError(t, e.Shutdown(t.Context()))
		require.Len(t, storedFiles(t, cfg.Queue.Storage), 1)

		cfg.Auth.BearerTokenFile = filepath.Join(t.TempDir(), "token")
		logs := &capture{}
		waiting := func(to sender) *Exporter {
			e := prepare(cfg, Options{Logger: logs.logger()})
			go e.run(func() (sender, error) { return to, nil })
			require.ErrorContains(t, e.Opened(t.Context()), "auth.bearer_token_file: "+cfg.Auth.BearerTokenFile+" does not exist")
			return e
		}
		e = waiting(&outageSender{})
		for range 3 {
			e.Enqueue(message(t, "new", 0))
		}
		time.Sleep(time.Minute)
		require.Equal(t, int64(30), balanced(t, e).Rows.Held)
		require.NoError(t, os.WriteFile(cfg.Auth.BearerTokenFile, []byte("t0ken"), 0o600))
		time.Sleep(2 * openLongestWait)
		synctest.Wait()
		require.Equal(t, int64(40), balanced(t, e).Rows.Delivered)
		require.NoError(t, e.Shutdown(t.Context()))
		require.Empty(t, storedFiles(t, cfg.Queue.Storage))
		require.Contains(t, logs.String(), "not ready, retrying")
		require.Contains(t, logs.String(), "ready, starting to send")

		// An exporter that can never open its files must still stop.
		cfg.Auth.BearerTokenFile += ".none"
		e = waiting(&outageSender{})
		e.Enqueue(message(t, "lost", 0))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.Error(t, e.Shutdown(ctx))
		require.Equal(t, map[Reason]int64{ReasonShutdown: 10}, balanced(t, e).Rows.Dropped)

		// An exporter must not block its callers for long if its file system hangs.
		answers := make(chan struct{})
		e = prepare(cfg, Options{Logger: logs.logger()})
		go e.run(func() (sender, error) { <-answers; return &outageSender{}, nil })
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, e.Opened(ctx), errOpenHangs)
		begin := time.Now()
		require.Error(t, e.Shutdown(ctx))
		require.Equal(t, stopGrace, time.Since(begin))
		close(answers)
	})
}
