package export

import (
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
)

// state holds an exporter's entries and counters. mu guards all fields.
type state struct {
	mu      sync.Mutex
	seq     uint64 // number of the last entry
	stats   Stats  // Stats computes its gauges
	memory  *budget
	disk    *budget
	queue   *sendQueue
	unsaved []*entry // to be written to the storage folder, in order
	ended   []*entry // finished entries whose files unlock removes
	gate    gate
	wake    chan struct{} // closed and replaced when workers or persist may have work
	drains  map[*drain]struct{}
	early   int64 // number of entries whose data is ahead of this machine's clock
	opened  bool  // the files and folders are open
	openErr error // error of the last attempt to open them
	stopped bool  // nothing is accepted or sent any longer
}

// unlock releases mu, and removes the files of entries that ended while mu was held. A caller that ends entries on disk must
// release mu with unlock.
func (e *Exporter) unlock() {
	ended := e.ended
	e.ended = nil
	e.mu.Unlock()
	for _, en := range ended {
		if err := e.store.Remove(en.seq); err != nil {
			e.log.errorf("unlink", "cannot remove a delivered or dropped request from the storage folder, so a restart would send it again: %v", err)
		}
	}
}

// Enqueue takes ownership of m. It never waits for a disk or a network, and never fails. It drops and counts messages for which
// there is no room.
func (e *Exporter) Enqueue(m Message) {
	if cap(m.Body) > len(m.Body)+len(m.Body)/4+1024 {
		// The queue counts only the length of the body, so do not keep a much larger array.
		m.Body = append(make([]byte, 0, len(m.Body)), m.Body...)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	en := newEntry(e.seq, m)
	e.stats.Rows.Enqueued += m.Rows
	e.stats.Rows.Held += m.Rows

	switch {
	case e.stopped:
		e.drop(en, ReasonShutdown)
	case !e.memory.fits(en.size):
		e.drop(en, ReasonQueueFull)
	default:
		e.memory.acquire(en)
		for e.memory.over(0) {
			e.drop(e.memory.victim(), ReasonQueueFull)
		}
		if en.budget == nil {
			break // the new entry itself was evicted
		}
		if e.cfg.Queue.Storage != "" {
			if len(e.unsaved) > 1024+2*int(e.memory.entries) {
				// The disk is so slow that most entries in unsaved were dropped.
				e.unsaved = slices.DeleteFunc(e.unsaved, func(en *entry) bool { return en.budget == nil })
			}
			e.unsaved = append(e.unsaved, en)
		} else {
			e.queue.push(en, time.Now())
		}
		e.wakeAll()
	}
}

// warnFull logs that messages are dropped because the queue is full.
func (e *Exporter) warnFull(r Reason) {
	key, bound := "queue_size", e.cfg.Queue.Size
	if r == ReasonStorageFull {
		key, bound = "storage_size", e.cfg.Queue.StorageSize
	}
	e.log.warnf(string(r), "dropped requests, because the queue is full (sending_queue.%s is %s): "+
		"the receiver is down or too slow. Raise sending_queue.%s, or send less with the setting sampling", key, humanize.IBytes(uint64(bound)), key)
}

// wakeAll makes idle workers and persist check for work. The caller holds mu.
func (e *Exporter) wakeAll() {
	close(e.wake)
	e.wake = make(chan struct{})
}

// drop removes en and counts it as dropped. The caller holds mu.
func (e *Exporter) drop(en *entry, r Reason) {
	e.stats.Rows.Dropped[r] += en.Rows
	e.stats.of(&en.Message, func(c *OriginCounts) {
		if c.Dropped == nil {
			c.Dropped = map[Reason]int64{}
		}
		c.Dropped[r] += en.Rows
	})
	if r.beforeSend() || (r == ReasonShutdown && en.tries == 0) {
		e.stats.EnqueueFailedSamples += en.Samples
	} else {
		e.stats.FailedSamples += en.Samples
	}
	if r == ReasonQueueFull || r == ReasonStorageFull {
		e.warnFull(r)
	}
	e.remove(en)
}

// remove takes en out of the queue and its budget, and updates the drains that wait for en. The caller holds mu, and has
// accounted for the rows.
func (e *Exporter) remove(en *entry) {
	e.stats.Rows.Held -= en.Rows
	e.queue.remove(en)
	e.setEarly(en, false)
	if en.budget == nil {
		return
	}
	en.budget.release(en)
	en.Body = nil
	if en.onDisk && !en.keepFile {
		e.ended = append(e.ended, en)
	}
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

// setEarly records and counts whether an entry's data is ahead of the clock. The caller holds mu.
func (e *Exporter) setEarly(en *entry, early bool) {
	if en.early == early {
		return
	}
	en.early = early
	if early {
		e.early++
	} else {
		e.early--
	}
}

// clearInFlight marks an entry as no longer in flight. It returns false if a Shutdown has abandoned and counted the entry. The
// caller must then not use the entry. The caller holds mu.
func clearInFlight(en *entry) bool {
	if !en.inFlight {
		return false
	}
	en.budget.setInFlight(en, false)
	return true
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
