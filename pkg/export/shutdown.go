package export

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// drain is one call of Drain that waits for entries.
type drain struct {
	upTo     uint64 // the number of the last entry that it waits for
	left     int64  // entries that it still waits for
	unsaved  int64  // of these, not on disk
	finished chan struct{}
}

// checkDrains ends the Drain calls that have nothing left to wait for. Their entries are all gone, or all on disk while the
// receiver fails or they wait for the clock. The caller holds mu.
func (e *Exporter) checkDrains() {
	for d := range e.drains {
		if d.left == 0 || d.unsaved == 0 && (e.gate.failing() || d.left <= e.early) {
			delete(e.drains, d)
			close(d.finished)
		}
	}
}

// Drain waits until everything that was enqueued before the call is delivered or dropped. If the receiver fails and there is a
// storage folder, it waits only until everything is stored there. If ctx ends first, the error says how much is still held. With
// storage, data on disk is not an error. It does not hurry: waits between attempts stay as they are. Only Shutdown cuts them short.
func (e *Exporter) Drain(ctx context.Context) error {
	if err := e.drain(ctx); err != nil {
		return fmt.Errorf("exporter %q: %w", e.cfg.Name, err)
	}
	return nil
}

func (e *Exporter) drain(ctx context.Context) error {
	e.mu.Lock()
	d := &drain{upTo: e.seq, finished: make(chan struct{})}
	d.left = e.memory.entries + e.disk.entries
	d.unsaved = e.memory.entries
	e.drains[d] = struct{}{}
	e.checkDrains()
	e.mu.Unlock()

	select {
	case <-d.finished:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.drains, d)
	if d.unsaved == 0 {
		return nil
	}
	return fmt.Errorf("%d requests are not delivered yet (%d rows held in all): %w",
		d.unsaved, e.stats.Rows.Held, context.Cause(ctx))
}

// Shutdown drains within ctx, then ends all sends and goroutines. The rest is dropped with the reason "shutdown", or stays in the
// storage folder for the next start. It returns soon after ctx ends, even if the receiver hangs. The error says what is
// unfinished. Later calls wait for the first one and return its error.
func (e *Exporter) Shutdown(ctx context.Context) error {
	first := false
	e.once.Do(func() { first = true })
	if !first {
		select {
		case <-e.closed:
			return e.shutErr
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer close(e.closed)

	e.mu.Lock()
	// This is the last chance, so do not wait unless the receiver requested it.
	e.gate.hurry()
	e.queue.hurry()
	e.wakeAll()
	e.mu.Unlock()

	drainErr := e.drain(ctx)
	e.mu.Lock()
	e.stopped = true
	e.wakeAll()
	e.mu.Unlock()
	e.cancel()

	var stuck error
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-e.done:
	case <-t.C:
		stuck = errors.New("a send or a write to the storage folder is still running")
	}
	lost := e.dropHeld()
	if lost > 0 {
		e.log.errorf("shutdown", "dropped %d rows that were still held at shutdown: the receiver did not accept them within the deadline", lost)
	}
	err := errors.Join(drainErr, stuck)
	if stuck == nil {
		// Else they are still in use, and closing them could hang too.
		if e.to != nil {
			err = errors.Join(err, e.to.Close())
		}
		if e.store != nil {
			err = errors.Join(err, e.store.Close())
		}
	}
	e.log.close()
	e.shutErr = err
	return err
}

// dropHeld drops the entries in memory and returns their rows.
func (e *Exporter) dropHeld() (rows int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disk.each(func(en *entry) { clearInFlight(en) }) // a send that does not end: the file stays for the next start
	e.memory.each(func(en *entry) {
		rows += en.Rows
		clearInFlight(en)
		e.drop(en, ReasonShutdown)
	})
	return rows
}
