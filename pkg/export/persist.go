package export

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// takeOver queues the messages that were found in the storage folder, logs what could not be used, and drops
// messages if the folder holds more than its limit.
func (e *Exporter) takeOver(found inventory) {
	var gone []*entry
	e.mu.Lock()
	e.stats.CorruptFiles = found.damaged
	e.renumber(found)
	var rows int64
	for _, f := range found.messages {
		en := newEntry(f.seq, f.msg)
		en.size += f.size
		en.onDisk = true
		e.seq = max(e.seq, f.seq)
		e.stats.Rows.Recovered += en.Rows
		e.stats.Rows.Held += en.Rows
		rows += en.Rows
		e.disk.acquire(en)
		e.queue.push(en, time.Now())
		for d := range e.drains { // their numbers are below those that it waits for: leave counts them
			d.left++
		}
	}
	for e.disk.over(0) {
		en := e.disk.victim()
		e.drop(en, ReasonStorageFull)
		gone = append(gone, en)
	}
	e.mu.Unlock()
	e.unlink(gone)
	if found.damaged > 0 {
		e.log.warnf("recovery", "%d files in the storage folder %s were damaged and removed: what they held is lost", found.damaged, e.store.dir)
	}
	if found.unreadable > 0 {
		e.log.warnf("unreadable", "%d files in the storage folder %s cannot be read now and stay for the next start: look at the disk: %v", found.unreadable, e.store.dir, found.readErr)
	}
	if found.unknown > 0 {
		e.log.warnf("unknown format", "%d files in the storage folder %s are in a format that this version does not know, and stay there for the version that wrote them, which sends them when it is back; remove them if it is not to come back: the last one is %v", found.unknown, e.store.dir, found.unknownErr)
	}
	if n := len(found.messages); n > 0 {
		e.log.infof("recovered", "%d messages with %d rows are taken over from the storage folder %s", n, rows, e.store.dir)
	}
	if len(gone) > 0 {
		e.logFull(ReasonStorageFull)
	}
}

// renumber gives new numbers to the messages that came in before the folder was open, higher than those of all
// files in it. A file is named after the number of its message, so without that they would overwrite files,
// such as those that stay there unread. The drains that wait for these messages follow. The caller holds mu.
func (e *Exporter) renumber(found inventory) {
	if found.last == 0 {
		return
	}
	before := e.seq
	e.seq = found.last
	upTo := map[*drain]uint64{}
	for d := range e.drains {
		upTo[d] = e.seq
	}
	for _, en := range e.unsaved {
		e.seq++
		for d := range e.drains {
			if en.seq <= d.upTo {
				upTo[d] = e.seq
			}
		}
		en.seq = e.seq
	}
	for d, n := range upTo {
		d.upTo = n
	}
	e.seq = max(e.seq, before)
}

// unlink removes the files of entries that have left the queue. The caller must not hold mu.
func (e *Exporter) unlink(list []*entry) {
	for _, en := range list {
		if !en.onDisk {
			continue
		}
		if err := e.store.remove(en.seq); err != nil {
			e.log.errorf("unlink", "a message that is done with cannot be removed from the storage folder and would be sent again after a restart: %v", err)
		}
	}
}

// persist writes new messages to the storage folder until the exporter stops. A message is queued for sending
// only after it was written, or the attempt to write it has failed.
func (e *Exporter) persist() {
	for {
		en, gone := e.nextUnsaved()
		e.unlink(gone)
		if len(gone) > 0 {
			e.logFull(ReasonStorageFull)
		}
		if en == nil {
			select {
			case <-e.save:
				continue
			case <-e.ctx.Done():
				return
			}
		}
		err := errNoRoom
		if e.disk.bound >= en.size {
			err = e.store.write(en.seq, en.Message)
		}
		e.saved(en, err)
		if err != nil {
			why := err.Error()
			if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
				why = fmt.Sprintf("%s %s: %v", pe.Op, pe.Path, pe.Err)
			}
			e.log.errorf("storage write", "a message cannot be written to the storage folder and is held in memory only: %s", why)
		}
	}
}

var errNoRoom = errors.New("it is larger than sending_queue.storage_size")

// nextUnsaved takes the oldest message that is not on disk yet, nil if there is none, and marks it as in flight.
// To make room for it, it drops messages that are on disk: their files are the caller's to unlink (gone).
func (e *Exporter) nextUnsaved() (en *entry, gone []*entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for en == nil {
		if len(e.unsaved) == 0 {
			return nil, nil
		}
		en, e.unsaved[0] = e.unsaved[0], nil
		e.unsaved = e.unsaved[1:]
		if en.budget == nil {
			en = nil // dropped meanwhile
		}
	}
	en.budget.setInFlight(en, true)
	if en.size > e.disk.bound {
		return en, nil
	}
	for e.disk.over(en.size) {
		victim := e.disk.victim()
		if victim == nil {
			break // all are in flight: for a moment the folder holds more than its bound
		}
		e.drop(victim, ReasonStorageFull)
		gone = append(gone, victim)
	}
	return en, gone
}

// saved queues a message for sending after an attempt to write it. Its body is then on disk only; if err says
// that the write failed, it stays in memory.
func (e *Exporter) saved(en *entry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
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
