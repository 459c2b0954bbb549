package export

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// cutListener closes the first connections after some bytes.
type cutListener struct {
	net.Listener
	left  atomic.Int64
	after int64
}

func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || l.left.Add(-1) < 0 {
		return conn, err
	}
	return &cutConn{Conn: conn, left: l.after}, nil
}

type cutConn struct {
	net.Conn
	left int64
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left -= int64(n); c.left < 0 {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // closes with a reset
		}
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func TestResetInMidMessage(t *testing.T) {
	t.Run(config.TransportGRPC, func(t *testing.T) {
		r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Listener: func(l net.Listener) net.Listener {
			cut := &cutListener{Listener: l, after: 20_000}
			cut.left.Store(3)
			return cut
		}})
		e, _ := open(t, settings(config.TransportGRPC, r.Addr))
		e.Enqueue(message(t, "app", 1<<20))
		drainAll(t, e)
		s := balanced(t, e)
		require.Equal(t, int64(10), s.Rows.Delivered)
		require.Positive(t, s.Retries)
		require.Equal(t, []string{"app"}, r.Names())
	})
	t.Run(config.TransportHTTP, func(t *testing.T) {
		r := recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, r recvtest.Request) {
			if r.Number <= 3 {
				panic(http.ErrAbortHandler)
			}
			recvtest.Accept(w, nil)
		}})
		e, _ := open(t, settings(config.TransportHTTP, r.URL))
		e.Enqueue(message(t, "app", 1<<20))
		drainAll(t, e)
		require.Equal(t, int64(10), balanced(t, e).Rows.Delivered)
		require.Len(t, r.Requests(), 4)
	})
}

// A receiver that restarts at the same address must get all messages, oldest first.
func TestReceiverRestarts(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{})
	cfg := settings(config.TransportGRPC, r.Addr)
	cfg.Queue.NumConsumers = 1
	e, logs := open(t, cfg)
	e.Enqueue(message(t, "0", 0))
	drainAll(t, e)
	for i := range 5 {
		r.Stop()
		e.Enqueue(message(t, strconv.Itoa(i), 0))
		e.Enqueue(message(t, "later", 0))
		require.Eventually(t, func() bool { return e.Stats().Retries > int64(2*i) }, 20*time.Second, time.Millisecond)
		r = recvtest.StartGRPC(t, recvtest.GRPCConfig{Addr: r.Addr})
		drainAll(t, e)
		require.Subset(t, r.Names(), []string{strconv.Itoa(i), "later"})
	}
	s := balanced(t, e)
	require.Equal(t, s.Rows.Enqueued, s.Rows.Delivered)
	stop(t, e)
	require.LessOrEqual(t, strings.Count(logs.String(), "sending failed, retrying"), 2, "one line a minute")
}

// muteListener simulates a crashed machine. Once requests have begun, the first connection discards the server's output.
type muteListener struct {
	net.Listener
	conns atomic.Int64
	mute  *atomic.Bool
}

func (l *muteListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || l.conns.Add(1) > 1 {
		return conn, err
	}
	return &muteConn{conn, l.mute}, nil
}

type muteConn struct {
	net.Conn
	mute *atomic.Bool
}

func (c *muteConn) Write(b []byte) (int, error) {
	if c.mute.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestDeadConnectionIsReplaced(t *testing.T) {
	var mute atomic.Bool
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Listener: func(l net.Listener) net.Listener {
		return &muteListener{Listener: l, mute: &mute}
	}})
	cfg := settings(config.TransportGRPC, r.Addr)
	cfg.Timeout = 200 * time.Millisecond
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "first", 0))
	require.Eventually(t, func() bool { return e.Stats().Rows.Delivered == 10 }, 20*time.Second, time.Millisecond)
	mute.Store(true)
	e.Enqueue(message(t, "second", 0))
	drainAll(t, e)
	s := balanced(t, e)
	require.Equal(t, int64(20), s.Rows.Delivered)
	require.GreaterOrEqual(t, s.Retries, int64(3))
}
