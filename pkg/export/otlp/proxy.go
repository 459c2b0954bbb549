package otlp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// maxProxyAnswer limits a proxy's answer to CONNECT.
const maxProxyAnswer = 64 << 10

type proxyFunc func(*http.Request) (*url.URL, error)

// proxyOf returns the proxy for an exporter's HTTP requests. It comes from the settings or, if they name none, from the
// environment.
func proxyOf(cfg config.Exporter) proxyFunc {
	if u := cfg.Proxy(); u != nil {
		return http.ProxyURL(u)
	}
	return http.ProxyFromEnvironment
}

// dialThrough returns a gRPC dialer that connects through an HTTP proxy with CONNECT
// (https://www.rfc-editor.org/rfc/rfc9110#CONNECT). gRPC itself supports only proxies from the environment.
func dialThrough(proxy *url.URL) func(context.Context, string) (net.Conn, error) {
	host := proxy.Host
	if proxy.Port() == "" {
		host = net.JoinHostPort(proxy.Hostname(), "80")
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
		if err != nil {
			return nil, fmt.Errorf("proxy_url: %w", err)
		}
		through, err := connectTo(ctx, conn, proxy.User, addr)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("proxy_url: %s: %w", host, err)
		}
		return through, nil
	}
}

// connectTo requests a connection to addr from the proxy behind conn.
func connectTo(ctx context.Context, conn net.Conn, user *url.Userinfo, addr string) (net.Conn, error) {
	// A deadline in the past makes reads and writes fail as soon as ctx ends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+basic(user.Username(), password))
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxProxyAnswer}
	answer := bufio.NewReader(limited)
	resp, err := http.ReadResponse(answer, req)
	if err != nil {
		return nil, fmt.Errorf("reading the proxy's response: %w", err)
	}
	_ = resp.Body.Close() // the answer to CONNECT has no body
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the proxy answered with HTTP status %d", resp.StatusCode)
	}
	if !stop() {
		return nil, ctx.Err() // the deadline is set or will soon be set
	}
	limited.N = math.MaxInt64 // all that follows comes from the receiver
	return &bufferedConn{conn, answer}, nil
}

// bufferedConn is a connection whose first bytes can already be in the buffer.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }
