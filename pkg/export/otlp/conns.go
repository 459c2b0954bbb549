package otlp

import (
	"context"
	"net"
	"sync"
)

// openConns holds an HTTP client's open connections. If an HTTP/2 connection's last request has just ended,
// CloseIdleConnections leaves the connection open for 90 s. closeAll closes it at once. An openConns is safe for concurrent
// use.
type openConns struct {
	mu   sync.Mutex
	open map[*openConn]struct{}
}

// openConn is an open connection.
type openConn struct {
	net.Conn
	of *openConns
}

// dialBy returns a dialer that records its connections.
func (c *openConns) dialBy(d *net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = map[*openConn]struct{}{}
		}
		kept := &openConn{conn, c}
		c.open[kept] = struct{}{}
		return kept, nil
	}
}

// Close implements net.Conn.
func (c *openConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *openConns) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close()
	}
	c.open = nil
}
