package export

import (
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

func TestDeliversUnchanged(t *testing.T) {
	for _, transport := range bothTransports {
		for _, compression := range []string{"none", "gzip", "zstd"} {
			t.Run(transport+"/"+compression, func(t *testing.T) {
				endpoint, requests := recvtest.Start(t, transport, nil, nil)
				cfg := settings(transport, endpoint)
				cfg.Compression = compression
				e, logs := open(t, cfg)
				for range 3 {
					e.Enqueue(message(t, "app", 50_000))
				}
				drainAll(t, e)
				require.Len(t, requests(), 3)
				for _, r := range requests() {
					require.True(t, proto.Equal(request("app", 50_000), r.Profiles))
					require.Equal(t, []string{"1"}, r.Metadata["otlp-profiles-development-version"])
				}
				s := balanced(t, e)
				require.Equal(t, int64(30), s.Rows.Delivered)
				require.Equal(t, int64(3), s.SentSamples)
				require.Equal(t, int64(3), s.Requests)
				require.Zero(t, s.QueueBytes)
				require.True(t, s.Oldest.IsZero())
				require.Empty(t, logs.String())
				// WireBytes counts the bytes on the network.
				if compression == "none" {
					require.InDelta(t, s.RequestBytes, s.WireBytes, 30)
				} else {
					require.Positive(t, s.WireBytes)
					require.Less(t, s.WireBytes, s.RequestBytes)
				}
			})
		}
	}
}

// TestProtocolVersion checks that the version header is sent once, because a receiver refuses two.
func TestProtocolVersion(t *testing.T) {
	for _, transport := range bothTransports {
		for name, tc := range map[string]struct {
			layout  string
			headers []config.Header
			want    []string
		}{
			"today's layout": {"1.11", nil, []string{"1"}},
			"an older one":   {"1.8", nil, nil},
			"of the user":    {"1.11", []config.Header{{Key: "otlp-profiles-development-version", Value: "7"}}, []string{"7"}},
		} {
			t.Run(transport+"/"+name, func(t *testing.T) {
				endpoint, requests := recvtest.Start(t, transport, nil, nil)
				cfg := settings(transport, endpoint)
				cfg.OTLPVersion, cfg.Headers = tc.layout, tc.headers
				sent(t, cfg)
				require.Len(t, requests(), 1)
				require.Equal(t, tc.want, requests()[0].Metadata["otlp-profiles-development-version"])
			})
		}
	}
}

// loaded returns the settings that package config derives from environment variables, for the exporter "test".
func loaded(t *testing.T, variables ...string) config.Exporter {
	t.Helper()
	for i, v := range variables {
		variables[i] = config.EnvPrefix + "TEST_" + v
	}
	cfg, err := config.Load(config.Sources{Environ: variables}).Exporter("test")
	require.NoError(t, err)
	return cfg
}

func TestGRPCTargets(t *testing.T) {
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	recvtest.StartGRPC(t, recvtest.GRPCConfig{Addr: socket})
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	for _, target := range []string{r.Addr, "http://" + r.Addr, "HTTP://" + r.Addr + "/", "dns:" + r.Addr, "dns:///" + r.Addr, "passthrough:///" + r.Addr, socket} {
		t.Run(target, func(t *testing.T) {
			e, _ := sent(t, loaded(t, "ENDPOINT="+target, "INSECURE=true"))
			require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
		})
	}
}

func TestHTTPURLs(t *testing.T) {
	r := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
	for name, tc := range map[string]struct{ endpoint, profiles, path string }{
		"endpoint":          {r.URL, "", "/v1development/profiles"},
		"slash":             {r.URL + "/", "", "/v1development/profiles"},
		"path":              {r.URL + "/otlp", "", "/otlp/v1development/profiles"},
		"profiles_endpoint": {"http://127.0.0.1:1", r.URL + "/mine", "/mine"},
	} {
		t.Run(name, func(t *testing.T) {
			sent(t, loaded(t, "EXPORTER=otlp-http", "ENDPOINT="+tc.endpoint, "PROFILES_ENDPOINT="+tc.profiles))
			list := r.Requests()
			require.Equal(t, tc.path, list[len(list)-1].HTTP.URL.Path)
		})
	}
}

// With round_robin, several addresses share the load. While one address is down, the other gets all requests.
func TestRoundRobin(t *testing.T) {
	a, b := recvtest.StartGRPC(t, recvtest.GRPCConfig{}), recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	names := manual.NewBuilderWithScheme("roundrobintest")
	names.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: a.Addr}, {Addr: b.Addr}}})
	resolver.Register(names)
	cfg := settings(config.TransportGRPC, "roundrobintest:///both")
	cfg.BalancerName = "round_robin"
	e, _ := open(t, cfg)
	require.Eventually(t, func() bool {
		e.Enqueue(message(t, "app", 0))
		return len(a.Requests()) > 3 && len(b.Requests()) > 3
	}, 20*time.Second, time.Millisecond)
	drainAll(t, e)
	a.Stop()
	before := len(b.Requests())
	for range 10 {
		e.Enqueue(message(t, "app", 0))
	}
	drainAll(t, e)
	require.Len(t, b.Requests(), before+10)
	s := balanced(t, e)
	require.Equal(t, s.Rows.Enqueued, s.Rows.Delivered)
}

type observer struct {
	mu             sync.Mutex
	ok, failed     int
	bytes          int
	negativeLength bool
}

func (o *observer) Request(d time.Duration, bytes int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok {
		o.ok++
	} else {
		o.failed++
	}
	o.bytes += bytes
	o.negativeLength = o.negativeLength || d < 0
}

func TestObserver(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: firstThenOK(withRetryInfo(t, 14, 0))})
	o := &observer{}
	cfg := settings(config.TransportGRPC, r.Addr)
	e, err := opened(cfg, Options{Logger: (&capture{}).logger(), Observer: o})
	require.NoError(t, err)
	m := message(t, "app", 0)
	size := len(m.Body)
	e.Enqueue(m)
	require.NoError(t, e.Shutdown(t.Context()))
	require.Equal(t, &observer{ok: 1, failed: 1, bytes: 2 * size}, o)
	s := balanced(t, e)
	require.Equal(t, int64(2*size), s.RequestBytes)
	require.Contains(t, r.Requests()[0].Metadata.Get("user-agent")[0], "ig-otel-profiles")
}

func TestOldestHeld(t *testing.T) {
	e, _ := open(t, settings(config.TransportGRPC, "127.0.0.1:1"))
	first := time.Now().Add(-time.Minute).Round(0)
	for i := range 3 {
		m := message(t, strconv.Itoa(i), 0)
		m.Owner, m.Start = strconv.Itoa(i), first.Add(time.Duration(i)*time.Second)
		e.Enqueue(m)
	}
	require.Equal(t, first, e.Stats().Oldest)
}
