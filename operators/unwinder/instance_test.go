package unwinder

import (
	"fmt"
	"io"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// closing keeps the closing line.
type closing struct {
	logger.Logger
	line string
}

func (c *closing) Infof(format string, args ...any) { c.line = fmt.Sprintf(format, args...) }

// TestBooks: rows that were discarded after they were handed on are a term of their own, and not among those handed on.
func TestBooks(t *testing.T) {
	log, quiet := &closing{Logger: logger.DefaultLogger()}, logrus.New()
	quiet.SetOutput(io.Discard)
	i := &instance{op: &operator{}, broker: unwinder.New(quiet), log: log, source: &unwinder.Subscription{}}
	i.counts = counts{received: 20, emitted: 12, filtered: 5, leftOut: 2, full: 1}
	i.rows.otherContainer = 3
	i.summarize()
	require.Contains(t, log.line, " 9 handed on, 5 filtered out, 2 left out for a lower frequency, 3 of a container that had gone, 0 without a stack, lost: 1 here, ")
	require.Equal(t, dropped{rows: 1, container: 3}, i.dropped)
}
