package symbols

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// All users must share one Store, which is created with the options at its first use.
func TestShared(t *testing.T) {
	bytes := int64(1 << 20)
	s := NewShared(func() Options { return Options{Bytes: bytes, Reader: parse.Here{}} })
	first := s.Acquire()
	bytes *= 2
	require.Same(t, first, s.Acquire())
	require.EqualValues(t, 1<<20, first.options.Bytes)
	s.Release()
	require.False(t, first.closed)
	s.Release()
	require.True(t, first.closed)
	second := s.Acquire()
	require.NotSame(t, first, second)
	require.EqualValues(t, 2<<20, second.options.Bytes)
	s.Release()
}
