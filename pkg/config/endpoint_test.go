package config

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestGRPCEndpoints(t *testing.T) {
	for written, want := range map[string]address{
		"collector:4317":               {target: "collector:4317", port: "4317"},
		"\tcollector:4317\n":           {target: "collector:4317", port: "4317"},
		"10.0.0.1:443":                 {target: "10.0.0.1:443", port: "443"},
		"[fd00::1]:4317":               {target: "[fd00::1]:4317", port: "4317"},
		"[::1]:4317":                   {target: "[::1]:4317", port: "4317", local: true},
		"localhost:4317":               {target: "localhost:4317", port: "4317", local: true},
		"127.0.0.2:1":                  {target: "127.0.0.2:1", port: "1", local: true},
		"http://collector:4317":        {target: "collector:4317", scheme: "http", port: "4317"},
		"HTTPS://collector:4317/":      {target: "collector:4317", scheme: "https", port: "4317"},
		"https://[fd00::1]:4317":       {target: "[fd00::1]:4317", scheme: "https", port: "4317"},
		"http://localhost:4317":        {target: "localhost:4317", scheme: "http", port: "4317", local: true},
		"dns:///collector:4317":        {target: "dns:///collector:4317", port: "4317"},
		"dns://10.0.0.53/collector:1":  {target: "dns://10.0.0.53/collector:1", port: "1"},
		"dns:collector:4317":           {target: "dns:collector:4317", port: "4317"},
		"passthrough:///10.0.0.1:4317": {target: "passthrough:///10.0.0.1:4317", port: "4317"},
		"unix:///run/otel.sock":        {target: "unix:///run/otel.sock", local: true},
		"unix:otel.sock":               {target: "unix:otel.sock", local: true},
		"dns:4317":                     {target: "dns:///dns:4317", port: "4317"}, // a host with that name
	} {
		t.Run(written, func(t *testing.T) {
			got, problem := takeGRPC(written)
			require.Empty(t, problem)
			require.Equal(t, want, got)
			// gRPC must interpret the endpoint in the same way.
			conn, err := grpc.NewClient(got.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		})
	}
}

func TestHTTPEndpoints(t *testing.T) {
	for written, want := range map[string]address{
		"http://collector:4318":            {target: "http://collector:4318", scheme: "http", port: "4318"},
		"https://otlp.example.com/":        {target: "https://otlp.example.com", scheme: "https"},
		"https://otlp.example.com/otlp///": {target: "https://otlp.example.com/otlp", scheme: "https"},
		"http://[::1]:4318/a%2Fb/":         {target: "http://[::1]:4318/a%2Fb", scheme: "http", port: "4318", local: true},
	} {
		t.Run(written, func(t *testing.T) {
			got, problem := takeURL(written, false)
			require.Empty(t, problem)
			require.Equal(t, want, got)
		})
	}
	got, problem := takeURL("https://h/v1development/profiles?tenant=1", true)
	require.Empty(t, problem)
	require.Equal(t, "https://h/v1development/profiles?tenant=1", got.target)
}

// A weaker source's whole URL must not override a stronger source's base URL.
func TestEndpointAndProfilesEndpoint(t *testing.T) {
	file := readYAML(t, exportersYAML("prod: {exporter: otlp-http, endpoint: 'https://base', profiles_endpoint: 'http://whole:1/p'}"))
	for name, test := range map[string]struct {
		src             Sources
		endpoint, whole string
		insecure        bool
	}{
		"file":           {Sources{}, "https://base", "http://whole:1/p", true},
		"flag":           {Sources{Flags: Flags{"otel-profiles-endpoint": "https://flag"}}, "https://flag", "", false},
		"variable":       {Sources{Environ: []string{EnvPrefix + "PROD_ENDPOINT=https://env"}}, "https://env", "", false},
		"whole variable": {Sources{Flags: Flags{"otel-profiles-endpoint": "http://flag"}, Environ: []string{EnvPrefix + "PROD_PROFILES_ENDPOINT=https://env/p"}}, "http://flag", "https://env/p", false},
	} {
		t.Run(name, func(t *testing.T) {
			test.src.File = file
			e, err := Load(test.src).Exporter("prod")
			require.NoError(t, err)
			require.Equal(t, test.endpoint, e.Endpoint)
			require.Equal(t, test.whole, e.ProfilesEndpoint)
			require.Equal(t, test.insecure, e.Insecure)
		})
	}
}
