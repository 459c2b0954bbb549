package export

import (
	"context"
	"errors"
	"fmt"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// drain is a call of Drain that waits for entries.
type drain struct {
	upTo     uint64 // the number of the last entry to wait for
	left     int64  // entries still to wait for
	unsaved  int64  // entries among left that are not on disk
	finished chan struct{}
}

// checkDrains ends Drain calls that need not wait any longer. Either all their entries are finished, or all are on disk and the
// receiver fails or the clock is slow. The caller holds mu.
func (e *Exporter) checkDrains() {
	for d := range e.drains {
		if d.left == 0 || d.unsaved == 0 && (e.gate.failing() || d.left <= e.early) {
			delete(e.drains, d)
			close(d.finished)
		}
	}
}

// Drain waits until everything enqueued before the call is delivered or dropped. If the receiver fails and there is a storage
// folder, Drain only waits until everything is stored. If ctx ends first, the error says how much is still held. Stored data is
// not an error. Only Shutdown shortens the waits between attempts.
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
	return fmt.Errorf("%d requests are not delivered yet (%d rows held in total): %w",
		d.unsaved, e.stats.Rows.Held, context.Cause(ctx))
}

// Shutdown drains until ctx ends, and then ends all sends and goroutines. Remaining messages are dropped with the reason
// "shutdown", or stay in the storage folder for the next start. Shutdown returns soon after ctx ends, even if the receiver hangs.
// The error says what is unfinished. Later calls wait for the first call and return its error.
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
	// This is the last chance to send, so wait only if the receiver requested it.
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
	if !patience.Within(e.done, stopGrace) {
		stuck = errors.New("a request is still being sent, or written to the storage folder")
	}
	lost := e.dropHeld()
	if lost > 0 {
		e.log.errorf("shutdown", "dropped %d rows that were still held at shutdown: the receiver did not accept them within the deadline", lost)
	}
	err := errors.Join(drainErr, stuck)
	if stuck == nil {
		// Otherwise, the sender and the folder are still in use, and closing them could also hang.
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

// dropHeld drops the entries in memory and returns the number of their rows.
func (e *Exporter) dropHeld() (rows int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disk.each(func(en *entry) { clearInFlight(en) }) // if a send does not end, the file stays for the next start
	e.memory.each(func(en *entry) {
		rows += en.Rows
		clearInFlight(en)
		e.drop(en, ReasonShutdown)
	})
	return rows
}
