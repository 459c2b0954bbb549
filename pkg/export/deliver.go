package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
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

// next waits for an entry that can be sent now, removes it from the queue, and marks it as in flight. The body is nil if it is
// on disk. The entry is nil if the exporter has stopped.
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
		e.expire()
		en := e.queue.oldest()
		if en != nil && !e.gate.closed(now) {
			e.queue.remove(en)
			en.budget.setInFlight(en, true)
			body := en.Body
			e.unlock()
			return en, body
		}
		wait := time.Hour
		if en != nil {
			wait = e.gate.until.Sub(now)
		}
		if due := e.queue.due(); !due.IsZero() { // computed after expire, which delays entries
			wait = min(wait, due.Sub(now))
		}
		wake := e.wake
		e.unlock()

		timer.Reset(max(wait, 0))
		select {
		case <-wake:
		case <-timer.C:
		case <-e.ctx.Done():
		}
	}
}

// expire checks the oldest entries of the queue. It drops entries whose data is older than receivers accept. It delays entries
// whose data is ahead of the clock, because a machine's clock can be slow after a start. The caller holds mu.
func (e *Exporter) expire() {
	now := e.now()
	for en := e.queue.oldest(); en != nil; en = e.queue.oldest() {
		e.setEarly(en, false)
		switch maxAge, from := e.cfg.Queue.MaxAge, en.from(); {
		case from.IsZero():
			return
		case maxAge > 0 && now.Sub(from) > maxAge && !e.cfg.History():
			e.log.warnf("too old", "dropped a request: its data from %s is older than sending_queue.max_age (%s), and receivers refuse old data",
				from.UTC().Format(time.RFC3339), maxAge)
			e.drop(en, ReasonTooOld)
		case from.Sub(now) > maxAhead && !e.cfg.History():
			e.queue.remove(en)
			e.setEarly(en, true)
			en.notBefore, en.mustWait = time.Now().Add(clockCheck), true
			e.queue.push(en, time.Now())
			e.log.warnf("too new", "holding a request: its data from %s is more than %s ahead of this machine's clock, and receivers would refuse it. Set the clock. The request is sent when the clock has caught up",
				from.UTC().Format(time.RFC3339), maxAhead)
			e.checkDrains()
		default:
			return
		}
	}
}

// deliver makes one attempt to send an entry in flight. Afterwards it removes the entry or queues it for the next attempt.
func (e *Exporter) deliver(en *entry, body []byte) {
	if e.store != nil && body == nil {
		var err error
		if body, err = e.store.Read(en.seq); err != nil {
			e.dropUnreadable(en, err)
			return
		}
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Timeout)
	m := en.Message
	m.Body = body
	out := e.to.Send(ctx, m)
	cancel()
	took := time.Since(started)
	if e.obs != nil {
		e.obs.Request(took, len(body), out.Verdict == attempt.Accepted || out.Verdict == attempt.Partial)
	}
	e.mu.Lock()
	reason, again := e.settle(en, out, started, int64(len(body)))
	e.unlock()
	e.report(en, len(body), out, reason, again)
}

// dropUnreadable drops an entry whose file cannot be read. It removes the file if it is corrupt, and otherwise keeps it for the
// next start.
func (e *Exporter) dropUnreadable(en *entry, err error) {
	r := ReasonStorageError
	e.mu.Lock()
	if errors.Is(err, spool.ErrCorrupt) {
		r = ReasonCorrupt
		e.stats.CorruptFiles++
	}
	en.keepFile = r != ReasonCorrupt && !errors.Is(err, fs.ErrNotExist)
	stays := ""
	if en.keepFile {
		stays = "; its file is kept for the next start"
	}
	if clearInFlight(en) {
		e.drop(en, r)
	}
	e.unlock()
	e.log.errorf(string(r), "dropped a request: it cannot be read from the storage folder %s: %v%s", e.store.Dir, err, stays)
}

// settle counts an attempt. Then it removes the entry, or queues it for the next attempt and returns again as true. reason is
// empty unless the entry was dropped. again is also true if a Shutdown abandoned the entry during the attempt. The caller holds
// mu.
func (e *Exporter) settle(en *entry, out attempt.Outcome, started time.Time, size int64) (reason Reason, again bool) {
	if !clearInFlight(en) {
		return "", true
	}
	now := time.Now()
	e.stats.Requests++
	e.stats.of(&en.Message, func(c *OriginCounts) { c.Requests++ })
	e.stats.RequestBytes += size
	e.stats.WireBytes += out.Sent
	if en.tries > 0 {
		e.stats.Retries++
	}
	en.tries++
	if en.firstAt.IsZero() {
		en.firstAt = started
	}

	if out.Verdict != attempt.Retryable {
		e.endOutage(now)
	}
	switch out.Verdict {
	case attempt.Accepted:
		e.stats.Rows.Delivered += en.Rows
		e.stats.of(&en.Message, func(c *OriginCounts) { c.Delivered += en.Rows })
		e.stats.SentSamples += en.Samples
		e.remove(en)
		return "", false
	case attempt.Partial:
		if en.Profiles > 0 && out.RejectedProfiles >= int64(en.Profiles) {
			e.drop(en, ReasonRejected)
			return ReasonRejected, false
		}
		e.stats.Rows.Partial += en.Rows
		e.stats.of(&en.Message, func(c *OriginCounts) { c.Partial += en.Rows })
		e.remove(en)
		return "", false
	case attempt.Rejected:
		reason = ReasonRejected
	case attempt.TooLarge:
		reason = ReasonTooLarge
	case attempt.Retryable:
		if reason = e.retryOver(en, now); reason == "" {
			e.retryLater(en, out, started, now)
			return "", true
		}
	}
	e.drop(en, reason)
	return reason, false
}

// endOutage opens the gate and wakes the workers. The caller holds mu.
func (e *Exporter) endOutage(now time.Time) {
	if !e.gate.failing() {
		return
	}
	if lasted := now.Sub(e.gate.since).Round(time.Second); lasted > 0 {
		e.log.infof("outage", "delivering again after an outage of %s; %s rows were held", lasted, humanize.Comma(e.stats.Rows.Held))
	}
	e.gate.open()
	e.wakeAll()
}

// retryOver returns the reason not to retry an entry, or "". The caller holds mu.
func (e *Exporter) retryOver(en *entry, now time.Time) Reason {
	switch limit := e.cfg.Retry.MaxElapsedTime; {
	case e.ctx.Err() != nil:
		return "" // Shutdown cancelled the attempt: the receiver has not failed
	case !e.cfg.Retry.Enabled:
		return ReasonRetryDisabled
	case limit > 0 && now.Sub(en.firstAt) >= limit:
		return ReasonMaxElapsedTime
	}
	return ""
}

// retryLater queues an entry for its next attempt. The caller holds mu.
func (e *Exporter) retryLater(en *entry, out attempt.Outcome, started, now time.Time) {
	en.notBefore = now.Add(max(en.retry.next(e.cfg.Retry), out.Wait))
	en.mustWait = out.Wait > 0
	e.gate.fail(e.cfg.Retry, started, now, out.Wait)
	e.queue.push(en, now)
	e.checkDrains()
	e.wakeAll()
}

// report logs an attempt unless it fully succeeded.
func (e *Exporter) report(en *entry, size int, out attempt.Outcome, reason Reason, again bool) {
	if e.ctx.Err() != nil && again {
		return
	}
	said := ""
	if out.Words != "" {
		said = ": " + e.log.words(out.Words)
	}
	hint := ""
	if out.Hint != "" {
		hint = "; " + out.Hint
	}
	switch {
	case again:
		wait := ""
		if out.Wait > 0 {
			wait = fmt.Sprintf(" (the receiver asked to wait %s)", out.Wait.Round(time.Millisecond))
		}
		e.log.warnf("retry", "sending failed, retrying%s: %s%s%s", wait, out.What, said, hint)
	case reason == ReasonTooLarge:
		e.log.errorf(string(reason), "dropped %d rows: a request of %d bytes is too large for the receiver: %s%s; "+
			"lower batch.max_request_size, or raise the receiver's limit", en.Rows, size, out.What, said)
	case reason == ReasonMaxElapsedTime:
		e.log.errorf(string(reason), "dropped %d rows: not delivered within retry_on_failure.max_elapsed_time (%s): %s%s%s",
			en.Rows, e.cfg.Retry.MaxElapsedTime, out.What, said, hint)
	case reason == ReasonRetryDisabled:
		e.log.errorf(string(reason), "dropped %d rows: sending failed and retry_on_failure.enabled is false: %s%s%s", en.Rows, out.What, said, hint)
	case reason != "":
		e.log.errorf(string(reason), "dropped %d rows: the receiver refused them: %s%s%s", en.Rows, out.What, said, hint)
	case out.Verdict == attempt.Partial:
		e.log.warnf("partial", "the receiver rejected %d profiles of a request with %d rows; the request is not retried: %s%s",
			out.RejectedProfiles, en.Rows, out.What, said)
	case out.What != "":
		e.log.warnf("odd answer", "delivered a request, but the receiver answered with %s%s%s", out.What, said, hint)
	}
}
