package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// work sends messages, one at a time, until the exporter stops.
func (e *Exporter) work() {
	for {
		en, body := e.next()
		if en == nil {
			return
		}
		e.deliver(en, body)
	}
}

// next waits for an entry that may be sent now, takes it out of the queue and marks it as in flight. The body is
// nil if it is on disk. The entry is nil when the exporter stops.
func (e *Exporter) next() (*entry, []byte) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		e.mu.Lock()
		if e.stopped {
			e.mu.Unlock()
			return nil, nil
		}
		now := time.Now()
		e.queue.promote(now)
		gone := e.expire()
		en := e.queue.oldest()
		if en != nil && !e.gate.closed(now) {
			e.queue.remove(en)
			en.budget.setInFlight(en, true)
			body := en.Body
			e.mu.Unlock()
			e.forget(gone)
			return en, body
		}
		wait := time.Hour
		if en != nil {
			wait = e.gate.until.Sub(now)
		}
		if due := e.queue.due(); !due.IsZero() { // asked after expire, which makes entries wait
			wait = min(wait, due.Sub(now))
		}
		wake := e.wake
		e.mu.Unlock()
		e.forget(gone)

		timer.Reset(max(wait, 0))
		select {
		case <-wake:
		case <-timer.C:
		case <-e.ctx.Done():
		}
	}
}

// clearInFlight marks an entry as no longer in flight. It returns false if a Shutdown that could not wait has given the
// entry up meanwhile: it is counted already, and the caller must leave it alone. The caller holds mu.
func clearInFlight(en *entry) bool {
	if !en.inFlight {
		return false
	}
	en.budget.setInFlight(en, false)
	return true
}

// expire looks at the oldest entries of the queue. It drops those whose data is older than receivers accept, and
// puts those aside whose data is ahead of the clock: a machine's clock may be behind when it starts. It returns
// the dropped ones. The caller holds mu, and passes them to forget after it has released mu.
func (e *Exporter) expire() (gone []*entry) {
	now := e.now()
	for en := e.queue.oldest(); en != nil; en = e.queue.oldest() {
		e.setEarly(en, false)
		switch maxAge, from := e.cfg.Queue.MaxAge, en.from(); {
		case from.IsZero():
			return gone
		case maxAge > 0 && now.Sub(from) > maxAge:
			e.drop(en, ReasonTooOld)
			gone = append(gone, en)
		case from.Sub(now) > maxAhead:
			e.queue.remove(en)
			e.setEarly(en, true)
			en.notBefore, en.mustWait = time.Now().Add(clockCheck), true
			e.queue.push(en, time.Now())
			e.log.warnf("too new", "held: data of %s is more than %s ahead of this machine's clock, which receivers refuse: set the clock; the data is sent when the clock has come up to it",
				from.UTC().Format(time.RFC3339), maxAhead)
			e.checkDrains()
		default:
			return gone
		}
	}
	return gone
}

// setEarly notes, and counts, whether an entry waits because its data is ahead of the clock. The caller holds mu.
func (e *Exporter) setEarly(en *entry, early bool) {
	switch {
	case early && !en.early:
		e.early++
	case !early && en.early:
		e.early--
	}
	en.early = early
}

// forget removes the files of entries that expire has dropped, and logs them. The caller does not hold mu.
func (e *Exporter) forget(gone []*entry) {
	e.unlink(gone)
	for _, en := range gone {
		e.log.warnf("too old", "dropped: data of %s is older than sending_queue.max_age (%s), which receivers refuse",
			en.from().UTC().Format(time.RFC3339), e.cfg.Queue.MaxAge)
	}
}

// deliver makes one attempt to send an entry that is in flight, and then removes it or lets it wait for the next
// attempt.
func (e *Exporter) deliver(en *entry, body []byte) {
	if e.store != nil && body == nil {
		var err error
		if body, err = e.store.read(en.seq); err != nil {
			e.lost(en, err)
			return
		}
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Timeout)
	out := e.to.send(ctx, body)
	cancel()
	took := time.Since(started)
	ok := out.verdict == accepted || out.verdict == partial
	if e.obs != nil {
		e.obs.Request(took, len(body), ok)
	}

	reason, keepFile := e.settle(en, out, started, int64(len(body)))
	if !keepFile {
		e.unlink([]*entry{en})
	}
	e.report(en, len(body), out, reason, keepFile)
}

// lost drops an entry whose file cannot be read back. A corrupt file is removed; one that is unreadable for
// another reason stays for the next start.
func (e *Exporter) lost(en *entry, err error) {
	r := ReasonStorageError
	if errors.Is(err, errCorrupt) {
		r = ReasonCorrupt
	}
	e.mu.Lock()
	if r == ReasonCorrupt {
		e.stats.CorruptFiles++
	}
	if clearInFlight(en) {
		e.drop(en, r)
	}
	e.mu.Unlock()
	if r == ReasonCorrupt || errors.Is(err, fs.ErrNotExist) {
		e.unlink([]*entry{en})
		e.log.errorf(string(r), "dropped: a message in the storage folder %s cannot be read: %v", e.store.dir, err)
		return
	}
	e.log.errorf(string(r), "dropped: a message in the storage folder %s cannot be read now: %v; its file stays for the next start", e.store.dir, err)
}

// settle counts an attempt and then ends the entry or queues it for the next attempt. reason is empty unless the
// entry was dropped. keepFile says that the entry's file must stay: it will be tried again, or a Shutdown has given
// it up meanwhile and leaves it for the next start.
func (e *Exporter) settle(en *entry, out outcome, started time.Time, size int64) (reason Reason, keepFile bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !clearInFlight(en) {
		return "", true
	}
	now := time.Now()
	e.stats.Requests++
	e.stats.RequestBytes += size
	e.stats.WireBytes += out.sent
	if en.tries > 0 {
		e.stats.Retries++
	}
	en.tries++
	if en.firstAt.IsZero() {
		en.firstAt = started
	}

	if out.verdict == undecided {
		out.verdict = retryable
	}
	if out.verdict != retryable {
		e.openGate()
	}
	switch out.verdict {
	case accepted:
		e.stats.Rows.Delivered += en.Rows
		e.stats.SentSamples += en.Samples
		e.leave(en)
		return "", false
	case partial:
		if en.Profiles > 0 && out.rejectedProfiles >= int64(en.Profiles) {
			e.drop(en, ReasonRejected)
			return ReasonRejected, false
		}
		e.stats.Rows.Partial += en.Rows
		e.leave(en)
		return "", false
	case rejected:
		reason = ReasonRejected
	case tooLarge:
		reason = ReasonTooLarge
	case retryable:
		if reason = e.retryOver(en, now); reason == "" {
			e.retryLater(en, out, started, now)
			return "", true
		}
	}
	e.drop(en, reason)
	return reason, false
}

// openGate ends the pause that a failing receiver has caused, and wakes the workers. The caller holds mu.
func (e *Exporter) openGate() {
	if !e.gate.failing() {
		return
	}
	e.gate.open()
	e.wakeAll()
}

// retryOver returns why an entry is not tried again, or "" if it is. The caller holds mu.
func (e *Exporter) retryOver(en *entry, now time.Time) Reason {
	switch limit := e.cfg.Retry.MaxElapsedTime; {
	case e.ctx.Err() != nil:
		return "" // Shutdown has cancelled the attempt: that is no failure of the receiver
	case !e.cfg.Retry.Enabled:
		return ReasonRetryDisabled
	case limit > 0 && now.Sub(en.firstAt) >= limit:
		return ReasonMaxElapsedTime
	}
	return ""
}

// retryLater puts an entry back to wait for its next attempt. The caller holds mu.
func (e *Exporter) retryLater(en *entry, out outcome, started, now time.Time) {
	en.notBefore = now.Add(max(en.retry.next(e.cfg.Retry), out.wait))
	en.mustWait = out.wait > 0
	e.gate.fail(e.cfg.Retry, started, now, out.wait)
	e.queue.push(en, now)
	e.checkDrains()
	e.wakeAll()
}

// report logs the end of an attempt that did not go as it should.
func (e *Exporter) report(en *entry, size int, out outcome, reason Reason, again bool) {
	if e.ctx.Err() != nil && again {
		return
	}
	said := ""
	if out.words != "" {
		said = ": " + e.log.words(out.words)
	}
	hint := ""
	if out.hint != "" {
		hint = "; " + out.hint
	}
	switch {
	case again:
		wait := ""
		if out.wait > 0 {
			wait = fmt.Sprintf(" (the receiver asked to wait %s)", out.wait.Round(time.Millisecond))
		}
		e.log.warnf("retry", "sending failed and will be tried again%s: %s%s%s", wait, out.what, said, hint)
	case reason == ReasonTooLarge:
		e.log.errorf(string(reason), "dropped %d rows: a request of %d bytes is too large for the receiver: %s%s; "+
			"lower batch.max_request_size, or raise the receiver's limit", en.Rows, size, out.what, said)
	case reason == ReasonMaxElapsedTime:
		e.log.errorf(string(reason), "dropped %d rows: not delivered within retry_on_failure.max_elapsed_time (%s): %s%s%s",
			en.Rows, e.cfg.Retry.MaxElapsedTime, out.what, said, hint)
	case reason == ReasonRetryDisabled:
		e.log.errorf(string(reason), "dropped %d rows: sending failed and retry_on_failure.enabled is false: %s%s%s", en.Rows, out.what, said, hint)
	case reason != "":
		e.log.errorf(string(reason), "dropped %d rows: the receiver refused them: %s%s%s", en.Rows, out.what, said, hint)
	case out.verdict == partial:
		e.log.warnf("partial", "the receiver left out %d profiles of a request with %d rows, which is not sent again: %s%s",
			out.rejectedProfiles, en.Rows, out.what, said)
	case out.what != "":
		e.log.warnf("odd answer", "delivered, but the receiver answered with %s%s%s", out.what, said, hint)
	}
}
