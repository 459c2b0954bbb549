package main

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// maxLog is the maximum size of the kept part of ig's log, in bytes.
const maxLog = 64 << 10

// igLog keeps the last lines of ig's log, without debug lines. It is safe for concurrent use.
type igLog struct {
	mu    sync.Mutex
	lines []string
	size  int
	part  []byte
	// began is when the gadget started, or zero. begun is closed at that time.
	began time.Time
	begun chan struct{}
}

// exporting is part of the line that ig logs right before the gadget starts.
const exporting = "otel-profiles: exporting data source"

func newLog() *igLog { return &igLog{begun: make(chan struct{})} }

// Write implements io.Writer.
func (l *igLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		line, rest, whole := bytes.Cut(l.part, []byte("\n"))
		if !whole && len(l.part) < maxLog {
			return len(b), nil
		}
		l.add(string(line))
		l.part = rest
	}
}

func (l *igLog) add(line string) {
	if strings.Contains(line, "level=debug") {
		return
	}
	if l.began.IsZero() && strings.Contains(line, exporting) {
		l.began = time.Now()
		close(l.begun)
	}
	l.lines = append(l.lines, line)
	for l.size += len(line) + 1; l.size > maxLog; l.lines = l.lines[1:] {
		l.size -= len(l.lines[0]) + 1
	}
}

// gadgetStarted returns when the gadget started, or zero.
func (l *igLog) gadgetStarted() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began
}

// String returns the kept lines.
func (l *igLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(append(l.lines[:len(l.lines):len(l.lines)], string(l.part)), "\n")
}
