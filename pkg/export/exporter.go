package export

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/file"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/otlp"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
)

const (
	// maxAhead limits how far data can be in the future, because receivers reject later data.
	maxAhead = 10 * time.Minute
	// clockCheck is the interval at which data beyond maxAhead are checked again.
	clockCheck = 30 * time.Second
	// maxStored bounds the number of stored messages, because each also costs some memory.
	maxStored = 1 << 16
	// stopGrace bounds the wait for sends that were cancelled.
	stopGrace = 2 * time.Second
)

// Options contains an exporter's inputs that are not settings. The zero value is valid.
type Options struct {
	Logger   logrus.FieldLogger // nil: logrus' standard logger
	Observer Observer
	Now      func() time.Time // the clock for the age of data; nil: time.Now
}

// Observer is notified of every attempt to send. Its methods are called from several goroutines.
type Observer interface {
	// Request reports an attempt that took d and sent a request of the given uncompressed size. ok reports whether the receiver
	// accepted the request, at least partly.
	Request(d time.Duration, bytes int, ok bool)
}

// sender is one transport. Send is called from several goroutines at once, but from only one for a file transport. Close is called
// at most once, when no Send is running.
type sender interface {
	// Send makes one attempt. It does not keep the message's body, and returns when ctx ends.
	Send(ctx context.Context, m Message) attempt.Outcome
	Close() error
}

// Exporter queues messages and delivers them to one receiver, at least once each. All methods are safe for concurrent use. It
// owns its goroutines, connections and storage folder until Shutdown.
type Exporter struct {
	cfg   config.Exporter
	now   func() time.Time
	obs   Observer
	log   *eventLog
	auth  *otlp.Auth
	to    sender        // set when the exporter is open
	store *spool.Folder // set with to; nil without a storage folder
	life
	state
}

// life controls the start and the end of an exporter's goroutines.
type life struct {
	ctx     context.Context
	cancel  context.CancelFunc
	tried   chan struct{} // closed after the first attempt to open the exporter
	done    chan struct{} // closed when all goroutines have ended
	once    sync.Once     // the first Shutdown
	closed  chan struct{} // closed when Shutdown has finished
	shutErr error         // the first Shutdown's error, set before closed is closed
}

// newSender returns the transport that the settings choose.
func (e *Exporter) newSender() (sender, error) {
	switch e.cfg.Transport {
	case config.TransportGRPC:
		return otlp.NewGRPC(e.cfg, e.auth, e.log.warnf)
	case config.TransportHTTP:
		return otlp.NewHTTP(e.cfg, e.auth, e.log.warnf)
	}
	if e.cfg.History() {
		return history.New(e.cfg.Path, e.cfg.Retention, func(err error) { e.log.warnf("history", "%v", err) })
	}
	return file.New(e.cfg, func(err error) { e.log.warnf("file", "%v", err) })
}
