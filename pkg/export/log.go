package export

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

const (
	logEvery    = time.Minute
	maxWords    = 256 // bytes of a receiver's message in a log line
	maxPending  = 64
	redactScope = 64 << 10 // bytes that are searched for secrets; the rest is cut off
)

// eventLog writes an exporter's log lines, at most one line of each kind per minute, with the number of omitted lines. A
// goroutine writes, because a logger can block on a full pipe. So callers never wait. eventLog removes secrets from every line,
// but not from prefix.
type eventLog struct {
	to      logrus.FieldLogger
	prefix  string
	secrets func() []string // secrets to remove from log lines

	rate warnings.Rate // this package defines the kinds, so they are few

	mu     sync.Mutex
	closed bool
	lines  chan logLine
	done   chan struct{}
}

type logLine struct {
	level logrus.Level
	text  string
}

// newEventLog starts the log's goroutine, which close ends.
func newEventLog(to logrus.FieldLogger, prefix string, secrets func() []string) *eventLog {
	l := &eventLog{
		to: to, prefix: prefix, secrets: secrets,
		rate:  warnings.Rate{Every: logEvery},
		lines: make(chan logLine, maxPending),
		done:  make(chan struct{}),
	}
	go l.run()
	return l
}

func (l *eventLog) run() {
	defer close(l.done)
	for line := range l.lines {
		l.to.WithFields(nil).Log(line.level, line.text)
	}
}

func (l *eventLog) errorf(kind, format string, args ...any) {
	l.post(logrus.ErrorLevel, kind, format, args...)
}

func (l *eventLog) warnf(kind, format string, args ...any) {
	l.post(logrus.WarnLevel, kind, format, args...)
}

func (l *eventLog) infof(kind, format string, args ...any) {
	l.post(logrus.InfoLevel, kind, format, args...)
}

func (l *eventLog) post(level logrus.Level, kind, format string, args ...any) {
	left, ok := l.rate.Due(kind)
	if !ok {
		return
	}
	text := fmt.Sprintf(format, args...)
	if left > 0 {
		text += fmt.Sprintf(" (%d more of this kind since the last such line)", left)
	}
	text = l.prefix + l.redact(text)

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	select {
	case l.lines <- logLine{level, text}:
	default:
		l.rate.Missed(kind, left)
	}
}

// close writes pending lines and ends the goroutine. It waits at most a second, because the logger can block.
func (l *eventLog) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.lines)
	}
	l.mu.Unlock()
	patience.Within(l.done, time.Second)
}

// redact replaces secrets in s.
func (l *eventLog) redact(s string) string {
	if len(s) > redactScope {
		s = s[:redactScope]
	}
	for _, secret := range l.secrets() {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return s
}

// words quotes a receiver's message, without secrets that the receiver has possibly echoed.
func (l *eventLog) words(s string) string {
	s = strings.ToValidUTF8(l.redact(s), "\uFFFD")
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "")
	}
	return fmt.Sprintf("%q", s)
}
