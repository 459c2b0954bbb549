package export

import (
	"errors"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
)

// takeOver queues the messages from the storage folder and logs the unusable ones. It drops messages beyond the folder's limits.
func (e *Exporter) takeOver(found spool.Inventory) {
	e.mu.Lock()
	e.stats.CorruptFiles = found.Damaged
	e.renumber(found.Last)
	var rows int64
	for _, f := range found.Messages {
		en := newEntry(f.Seq, f.Message)
		en.size += f.Size
		en.onDisk = true
		e.stats.Rows.Recovered += en.Rows
		e.stats.Rows.Held += en.Rows
		rows += en.Rows
		e.disk.acquire(en)
		e.queue.push(en, time.Now())
		for d := range e.drains { // these messages have lower numbers than new messages, so remove counts them
			d.left++
		}
	}
	for e.disk.over(0) {
		e.drop(e.disk.victim(), ReasonStorageFull)
	}
	e.unlock()
	if found.Damaged > 0 {
		e.log.warnf("recovery", "%d files in the storage folder %s were damaged and removed: their requests are lost", found.Damaged, e.store.Dir)
	}
	if found.Unreadable > 0 {
		e.log.warnf("unreadable", "%d files in the storage folder %s cannot be read, and are kept for the next start. Check the disk. The last error: %v", found.Unreadable, e.store.Dir, found.ReadErr)
	}
	if found.Unknown > 0 {
		e.log.warnf("unknown format", "%d files in the storage folder %s have an unknown format and are kept, because a newer version may have written them. Remove them if you no longer use that version. The last error: %v", found.Unknown, e.store.Dir, found.UnknownErr)
	}
	if n := len(found.Messages); n > 0 {
		e.log.infof("recovered", "loaded %d requests with %d rows from the storage folder %s", n, rows, e.store.Dir)
	}
}

// renumber adds by, the highest number in the folder, to the numbers of the messages that were queued before. Because a message's
// number is its file's name, the old numbers could overwrite files. All these messages are still in unsaved. renumber also updates
// the drains that wait for them. The caller holds mu.
func (e *Exporter) renumber(by uint64) {
	e.seq += by
	for _, en := range e.unsaved {
		en.seq += by
	}
	for d := range e.drains {
		d.upTo += by
	}
}

// persist writes new messages to the storage folder until the exporter stops. It queues a message for sending after the write has
// succeeded or failed.
func (e *Exporter) persist() {
	for {
		en, wake := e.nextUnsaved()
		if en == nil {
			select {
			case <-wake:
				continue
			case <-e.ctx.Done():
				return
			}
		}
		err := errNoRoom
		if e.disk.bound >= en.size {
			err = e.store.Write(en.seq, en.Message)
		}
		e.saved(en, err)
		if err != nil {
			e.log.errorf("storage write", "a request cannot be written to the storage folder %s, and is held only in memory: %v", e.cfg.Queue.Storage, err)
		}
	}
}

var errNoRoom = errors.New("it is larger than sending_queue.storage_size")

// nextUnsaved returns the oldest message that is not on disk yet, and marks it as in flight. To make room for it, nextUnsaved
// drops messages on disk. If there is no such message, it returns the channel that announces the next one.
func (e *Exporter) nextUnsaved() (en *entry, wake chan struct{}) {
	e.mu.Lock()
	defer e.unlock()
	for en == nil {
		if len(e.unsaved) == 0 {
			return nil, e.wake
		}
		en, e.unsaved[0] = e.unsaved[0], nil
		e.unsaved = e.unsaved[1:]
		if en.budget == nil {
			en = nil // the entry was dropped in the meantime
		}
	}
	en.budget.setInFlight(en, true)
	for en.size <= e.disk.bound && e.disk.over(en.size) {
		victim := e.disk.victim()
		if victim == nil {
			break // all are in flight, so the folder exceeds its bound for a moment
		}
		e.drop(victim, ReasonStorageFull)
	}
	return en, nil
}

// saved queues a message for sending after an attempt to write it. After a successful write, the body is only on disk. If err is
// not nil, the body stays in memory.
func (e *Exporter) saved(en *entry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.NotStored = err != nil
	if !clearInFlight(en) {
		return
	}
	if err == nil {
		e.memory.release(en)
		en.Body = nil
		en.onDisk = true
		e.disk.acquire(en)
		for d := range e.drains {
			if en.seq <= d.upTo {
				d.unsaved--
			}
		}
	}
	e.queue.push(en, time.Now())
	e.checkDrains()
	e.wakeAll()
}
