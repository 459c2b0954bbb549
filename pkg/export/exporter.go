package export

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

const (
	// maxAhead is how far in the future data may be: receivers refuse more.
	maxAhead = 10 * time.Minute
	// clockCheck is how often data that is further ahead is compared with the clock again.
	clockCheck = 30 * time.Second
	// maxStored bounds the number of messages in the storage folder, because each also costs some
	// memory.
	maxStored = 1 << 16
	// stopGrace bounds the wait for sends that were cancelled.
	stopGrace = 2 * time.Second
)

// Options are what an exporter takes beside its settings. The zero value works.
type Options struct {
	Logger    logrus.FieldLogger // nil: logrus' standard logger
	Observer  Observer
	Now       func() time.Time // the clock that the age of data is measured against; nil: time.Now
	UserAgent string           // empty: ig-otel-profiles
	// Patient has New return at once, and the exporter go on trying to open what it needs (certificates,
	// secrets, the storage folder) until it can. Meanwhile it holds messages in memory. See Opened.
	Patient bool
}

// Observer is told of every attempt to send. Its methods are called from several goroutines.
type Observer interface {
	// Request reports an attempt that took d and carried bytes, uncompressed. ok says that the
	// receiver accepted it, wholly or in part.
	Request(d time.Duration, bytes int, ok bool)
}

// Exporter queues messages and delivers them to one receiver, at least once each. All methods are
// safe for concurrent use. It owns its goroutines, its connections and its storage folder, until
// Shutdown.
type Exporter struct {
	cfg    config.Exporter
	now    func() time.Time
	obs    Observer
	log    *eventLog
	auth   *auth
	to     sender        // set when it is open
	store  *storage      // the same; nil without a storage folder
	tried  chan struct{} // closed after the first attempt to open it
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when all goroutines have ended
	closed chan struct{} // closed when Shutdown is through
	once   sync.Once

	mu      sync.Mutex
	seq     uint64
	stats   Stats // the gauges in it are computed by Stats
	memory  *budget
	disk    *budget
	queue   *sendQueue
	unsaved []*entry // waiting to be written to the storage folder, in order
	gate    gate
	wake    chan struct{} // closed and replaced when a worker may have something to do
	save    chan struct{} // tells the writer of new work
	drains  map[*drain]struct{}
	early   int64 // entries whose data is ahead of this machine's clock
	opened  bool  // what it needs is there
	openErr error // of the last attempt to open it
	stopped bool  // nothing is taken or sent any more
	shutErr error // of the first Shutdown, set before closed is closed
}

// newSender makes the transport that cfg names.
func newSender(cfg config.Exporter, a *auth, log *eventLog, userAgent string) (sender, error) {
	switch cfg.Transport {
	case config.TransportGRPC:
		return newGRPCSender(cfg, a, log, userAgent)
	case config.TransportHTTP:
		return newHTTPSender(cfg, a, log, userAgent)
	}
	return newFileSender(cfg, log)
}

// Enqueue takes m over. It never waits for a disk or a network and never fails: what cannot be
// held is dropped and counted.
func (e *Exporter) Enqueue(m Message) {
	if cap(m.Body) > len(m.Body)+len(m.Body)/4+1024 {
		// Only the length counts in the queue: do not hold much more than that.
		m.Body = append(make([]byte, 0, len(m.Body)), m.Body...)
	}
	e.mu.Lock()
	e.seq++
	en := newEntry(e.seq, m)
	e.stats.Rows.Enqueued += m.Rows
	e.stats.Rows.Held += m.Rows

	var full bool
	switch {
	case e.stopped:
		e.drop(en, ReasonShutdown)
	case !e.memory.fits(en.size):
		e.drop(en, ReasonQueueFull)
		full = true
	default:
		e.memory.acquire(en)
		for e.memory.over(0) {
			full = true
			e.drop(e.memory.victim(), ReasonQueueFull)
		}
		if en.budget == nil {
			break // the new entry itself was evicted
		}
		if e.cfg.Queue.Storage != "" {
			if len(e.unsaved) > 1024+2*int(e.memory.entries) {
				// The disk is so slow that most of these were dropped.
				e.unsaved = slices.DeleteFunc(e.unsaved, func(en *entry) bool { return en.budget == nil })
			}
			e.unsaved = append(e.unsaved, en)
			notify(e.save)
		} else {
			e.queue.push(en, time.Now())
			e.wakeAll()
		}
	}
	e.mu.Unlock()
	if full {
		e.logFull(ReasonQueueFull)
	}
}

func (e *Exporter) logFull(r Reason) {
	key, bound := "queue_size", e.cfg.Queue.Size
	if r == ReasonStorageFull {
		key, bound = "storage_size", e.cfg.Queue.StorageSize
	}
	e.log.warnf(string(r), "dropped: the queue has no room within sending_queue.%s (%d bytes): "+
		"the receiver is down or too slow; raise sending_queue.%s or lower the volume", key, bound, key)
}

// notify wakes the one reader of c.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wakeAll makes idle workers look again. The caller holds mu.
func (e *Exporter) wakeAll() {
	close(e.wake)
	e.wake = make(chan struct{})
}

// drop gives up en and counts it. The caller holds mu, and removes the file of an entry that is
// on disk after it has let go of mu.
func (e *Exporter) drop(en *entry, r Reason) {
	e.stats.Rows.Dropped[r] += en.Rows
	if r.beforeSend() || (r == ReasonShutdown && en.tries == 0) {
		e.stats.EnqueueFailedSamples += en.Samples
	} else {
		e.stats.FailedSamples += en.Samples
	}
	e.leave(en)
}

// leave takes en out of the queue and its budget, and tells the drains that wait for it. The caller holds mu, and has
// counted what became of its rows.
func (e *Exporter) leave(en *entry) {
	e.stats.Rows.Held -= en.Rows
	e.queue.remove(en)
	e.setEarly(en, false)
	if en.budget == nil {
		return
	}
	en.budget.release(en)
	en.Body = nil
	for d := range e.drains {
		if en.seq <= d.upTo {
			d.left--
			if !en.onDisk {
				d.unsaved--
			}
		}
	}
	e.checkDrains()
}

// Stats returns a consistent snapshot.
func (e *Exporter) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats.clone()
	s.QueueBytes = e.memory.used + e.disk.used
	s.QueueCapacity = e.memory.bound + e.disk.bound
	s.QueueMessages = e.memory.entries + e.disk.entries
	s.Waiting = !e.opened && !e.stopped
	var oldest *entry
	for _, b := range []*budget{e.memory, e.disk} {
		for _, o := range b.owners {
			if en := o.entries.Front().Value.(*entry); oldest == nil || en.seq < oldest.seq {
				oldest = en
			}
		}
	}
	if oldest != nil {
		s.Oldest = oldest.from()
	}
	return s
}

// Name is the exporter's name in the settings.
func (e *Exporter) Name() string { return e.cfg.Name }

// Destination names where the exporter sends to, without secrets.
func (e *Exporter) Destination() string { return e.cfg.Destination() }
