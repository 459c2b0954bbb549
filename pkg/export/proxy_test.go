package export

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// httpProxy is a proxy that supports CONNECT for user:s3cr3t-proxy.
type httpProxy struct {
	addr string

	mu  sync.Mutex
	saw []string
}

func startProxy(t *testing.T) *httpProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &httpProxy{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		serving.Wait()
	})
	return p
}

func (p *httpProxy) targets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.saw...)
}

func (p *httpProxy) serve(client net.Conn) {
	defer client.Close()
	in := bufio.NewReader(client)
	req, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	if req.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("user:s3cr3t-proxy")) {
		_, _ = fmt.Fprint(client, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	p.mu.Lock()
	p.saw = append(p.saw, req.Method+" "+req.Host)
	p.mu.Unlock()
	// The proxy resolves names.
	server, err := net.Dial("tcp", strings.Replace(req.Host, "behind.example", "127.0.0.1", 1))
	if err != nil {
		_, _ = fmt.Fprint(client, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer server.Close()
	_, _ = fmt.Fprint(client, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		_, _ = io.Copy(server, in)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}

// TestProxy requires that requests to receivers and token servers use the proxy in the settings.
func TestProxy(t *testing.T) {
	for _, transport := range bothTransports {
		for _, scheme := range []string{"", "dns:///"} {
			if scheme != "" && transport == config.TransportHTTP {
				continue
			}
			t.Run(transport+"/"+scheme, func(t *testing.T) {
				g, tokens, cfg := startGuarded(t, transport)
				proxy := startProxy(t)
				cfg.ProxyURL = "http://user:s3cr3t-proxy@" + proxy.addr
				receiver := strings.TrimPrefix(cfg.Endpoint, "https://")
				// This machine cannot resolve the name.
				behind := strings.Replace(receiver, "127.0.0.1", "behind.example", 1)
				cfg.Endpoint = scheme + strings.Replace(cfg.Endpoint, receiver, behind, 1)
				cfg.TLS.ServerNameOverride = "server"
				cfg.TLS.InsecureSkipVerify = true
				e, logs := sent(t, cfg)
				require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
				require.Len(t, g.requests(), 1)
				require.ElementsMatch(t, []string{
					"CONNECT " + strings.TrimSuffix(strings.TrimPrefix(tokens.url, "https://"), "/token"), "CONNECT " + behind,
				}, proxy.targets())
				stop(t, e)
				require.NotContains(t, logs.String(), "s3cr3t")
			})
		}
	}
}

// An error must name the proxy that refuses the exporter. Until the proxy accepts it, rows are held.
func TestProxyThatRefuses(t *testing.T) {
	proxy := startProxy(t)
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hangs.Close()) })
	for _, transport := range bothTransports {
		for url, says := range map[string]string{
			"http://user:s3cr3t-wrong@" + proxy.addr: "roxy",
			"http://127.0.0.1:1":                     "connection refused",
			"http://" + hangs.Addr().String():        "retrying",
		} {
			t.Run(transport+" "+says, func(t *testing.T) {
				cfg := settings(transport, "https://behind.example:4317")
				cfg.Insecure = false
				cfg.ProxyURL = url
				if says == "retrying" { // otherwise, wait for the answer to the first attempt
					cfg.Timeout = 100 * time.Millisecond
				}
				e, logs := open(t, cfg)
				e.Enqueue(message(t, "app", 0))
				require.Eventually(t, func() bool { return e.Stats().Retries > 1 }, 20*time.Second, time.Millisecond)
				stop(t, e)
				require.Contains(t, logs.String(), says)
				require.NotContains(t, logs.String(), "s3cr3t")
			})
		}
	}
}
