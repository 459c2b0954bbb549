package export

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

const (
	defaultTimeout = 10 * time.Second
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
	to     sender
	store  *storage // nil without a storage folder
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
	wake    chan struct{}       // closed and replaced when a worker may have something to do
	save    chan struct{}       // tells the writer of new work
	flying  map[*entry]struct{} // being sent or written to disk
	drains  map[*drain]struct{}
	early   int64 // entries that wait for the clock
	stopped bool  // nothing is taken or sent any more
	shutErr error // of the first Shutdown, set before closed is closed
}

// drain is one call of Drain that waits for entries.
type drain struct {
	upTo     uint64 // entries that came after are none of its business
	left     int64  // entries held
	unsaved  int64  // of these, not on disk
	finished chan struct{}
}

// New starts an exporter. It validates what the settings alone could not show (certificates,
// secret files, the storage folder and its lock) and connects to nothing yet. The error names the
// setting; the caller names the exporter.
func New(cfg config.Exporter, opts Options) (*Exporter, error) {
	if opts.Logger == nil {
		opts.Logger = logrus.StandardLogger()
	}
	if opts.UserAgent == "" {
		opts.UserAgent = "ig-otel-profiles"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	a, err := newAuth(cfg.Headers, cfg.Auth)
	if err != nil {
		return nil, err
	}
	log := newEventLog(opts.Logger, fmt.Sprintf("exporter %q (%s to %s): ", cfg.Name, cfg.Transport, shownEndpoint(cfg)), a.secrets)
	to, err := newSender(cfg, a, log, opts.UserAgent)
	if err != nil {
		log.close()
		return nil, err
	}
	e, err := start(cfg, opts, to, log)
	if err != nil {
		log.close()
		return nil, errors.Join(err, to.close())
	}
	return e, nil
}

// newSender makes the transport that cfg names.
func newSender(cfg config.Exporter, a *auth, log *eventLog, userAgent string) (sender, error) {
	switch cfg.Transport {
	case config.TransportGRPC:
		return newGRPCSender(cfg, a, log, userAgent)
	case config.TransportHTTP:
		return newHTTPSender(cfg, a, log, userAgent)
	case config.TransportFile:
		return newFileSender(cfg, log)
	}
	return nil, fmt.Errorf("exporter: got %q: take %s, %s or %s", cfg.Transport,
		config.TransportGRPC, config.TransportHTTP, config.TransportFile)
}

// shownEndpoint names where an exporter sends to, without secrets.
func shownEndpoint(cfg config.Exporter) string {
	switch cfg.Transport {
	case config.TransportFile:
		return cfg.Path
	case config.TransportHTTP:
		if u, err := profilesURL(cfg); err == nil {
			return shownURL(u)
		}
		return "an endpoint that is no URL"
	}
	target := grpcTarget(cfg.Endpoint)
	return target[strings.LastIndex(target, "@")+1:]
}

// start opens the storage folder and starts the goroutines.
func start(cfg config.Exporter, opts Options, to sender, log *eventLog) (*Exporter, error) {
	e := &Exporter{
		cfg: cfg, now: opts.Now, obs: opts.Observer, log: log, to: to,
		done: make(chan struct{}), closed: make(chan struct{}),
		memory: newBudget(cfg.Queue.Size), disk: newBudget(0), queue: newSendQueue(),
		wake: make(chan struct{}), save: make(chan struct{}, 1),
		flying: map[*entry]struct{}{}, drains: map[*drain]struct{}{},
		stats: Stats{Rows: RowCounts{Dropped: map[Reason]int64{}}, DroppedMessages: map[Reason]int64{}},
	}
	if e.now == nil {
		e.now = time.Now
	}
	if cfg.Queue.Storage != "" {
		store, found, err := openStorage(cfg.Queue.Storage)
		if err != nil {
			return nil, err
		}
		e.store = store
		e.disk.bound, e.disk.limit = cfg.Queue.StorageSize, maxStored
		e.takeOver(found)
	}

	e.ctx, e.cancel = context.WithCancel(context.Background())
	var wg sync.WaitGroup
	workers := max(cfg.Queue.NumConsumers, 1)
	if cfg.Transport == config.TransportFile {
		workers = 1
	}
	for range workers {
		wg.Go(e.work)
	}
	if e.store != nil {
		wg.Go(e.persist)
	}
	go func() {
		wg.Wait()
		close(e.done)
	}()
	return e, nil
}

// takeOver queues what the storage folder held.
func (e *Exporter) takeOver(found inventory) {
	var gone []*entry
	e.mu.Lock()
	e.stats.CorruptFiles = found.damaged
	var rows int64
	for _, f := range found.messages {
		en := newEntry(f.seq, f.msg)
		en.size += f.size
		en.onDisk = true
		e.seq = max(e.seq, f.seq)
		e.stats.Rows.Recovered += en.Rows
		e.stats.Rows.Held += en.Rows
		rows += en.Rows
		e.disk.charge(en)
		e.queue.push(en, time.Now())
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
	if n := len(found.messages); n > 0 {
		e.log.infof("recovered", "%d messages with %d rows are taken over from the storage folder %s", n, rows, e.store.dir)
	}
	if len(gone) > 0 {
		e.logFull(ReasonStorageFull)
	}
}

// Enqueue takes m over. It never waits for a disk or a network and never fails: what cannot be
// held is dropped and counted.
func (e *Exporter) Enqueue(m Message) {
	if cap(m.Body) > len(m.Body)+len(m.Body)/4+1024 {
		// The queue is charged with the length; do not hold much more than that.
		m.Body = append(make([]byte, 0, len(m.Body)), m.Body...)
	}
	if m.Layout == "" {
		m.Layout = e.cfg.OTLPVersion
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
		e.memory.charge(en)
		for e.memory.over(0) {
			full = true
			e.drop(e.memory.victim(), ReasonQueueFull)
		}
		if en.budget == nil {
			break // it was the victim itself
		}
		if e.store != nil {
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
	e.stats.DroppedMessages[r]++
	if r.beforeSend() || (r == ReasonShutdown && en.tries == 0) {
		e.stats.EnqueueFailedSamples += en.Samples
	} else {
		e.stats.FailedSamples += en.Samples
	}
	e.leave(en)
}

// leave takes en out of everything: its fate is counted. The caller holds mu.
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

// checkDrains ends the Drain calls that have nothing left to wait for: their entries are gone or safely on
// disk, while the receiver does not take any or all wait for the clock. The caller holds mu.
func (e *Exporter) checkDrains() {
	for d := range e.drains {
		if d.left == 0 || d.unsaved == 0 && (e.gate.failing() || d.left <= e.early) {
			delete(e.drains, d)
			close(d.finished)
		}
	}
}

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

// next waits for an entry that may be sent now and takes it in flight. The body is nil if it is on
// disk, the entry when the exporter stops.
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
		en := e.queue.now.top()
		if en != nil && !e.gate.closed(now) {
			e.queue.pop()
			e.takeOff(en)
			body := en.Body
			e.mu.Unlock()
			e.forget(gone)
			return en, body
		}
		wait := time.Hour
		if en != nil {
			wait = e.gate.until.Sub(now)
		}
		if later := e.queue.later.top(); later != nil {
			wait = min(wait, later.ready.Sub(now))
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

// takeOff marks an entry as in somebody's hands: it cannot be given up. land undoes it. The caller
// holds mu.
func (e *Exporter) takeOff(en *entry) {
	en.budget.pin(en)
	e.flying[en] = struct{}{}
}

// land reports false if the entry was given up all the same, by a Shutdown that could not wait for
// it: then it is counted already. The caller holds mu.
func (e *Exporter) land(en *entry) bool {
	if _, ok := e.flying[en]; !ok {
		return false
	}
	delete(e.flying, en)
	en.budget.unpin(en)
	return true
}

// expire drops the oldest entries while their data is too old for a receiver, and puts those aside that
// are too new: the clock of a machine may be behind at its start. The caller holds mu, and calls forget
// after it has let go.
func (e *Exporter) expire() (gone []*entry) {
	now := e.now()
	for en := e.queue.now.top(); en != nil; en = e.queue.now.top() {
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
			en.ready, en.asked = time.Now().Add(clockCheck), true
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

// setEarly notes whether an entry waits for the clock. The caller holds mu.
func (e *Exporter) setEarly(en *entry, early bool) {
	switch {
	case early && !en.early:
		e.early++
	case !early && en.early:
		e.early--
	}
	en.early = early
}

// from is the time that receivers judge a request by: its start.
func (en *entry) from() time.Time {
	if en.Start.IsZero() {
		return en.End
	}
	return en.Start
}

// forget finishes what expire began.
func (e *Exporter) forget(gone []*entry) {
	e.unlink(gone)
	for _, en := range gone {
		e.log.warnf("too old", "dropped: data of %s is older than sending_queue.max_age (%s), which receivers refuse",
			en.from().UTC().Format(time.RFC3339), e.cfg.Queue.MaxAge)
	}
}

// deliver makes one attempt with an entry in flight and decides what becomes of it.
func (e *Exporter) deliver(en *entry, body []byte) {
	if e.store != nil && body == nil {
		var err error
		if body, err = e.store.read(en.seq); err != nil {
			e.lost(en, err)
			return
		}
	}
	if en.Layout != e.cfg.OTLPVersion && en.Layout != "" { // stored before the settings changed
		var err error
		if body, err = relaid(body, en.Layout, e.cfg.OTLPVersion); err != nil {
			e.lost(en, fmt.Errorf("%w: rewriting it for otlp_version %q: %w", errCorrupt, e.cfg.OTLPVersion, err))
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

	reason, again := e.settle(en, out, started, int64(len(body)))
	if !again {
		e.unlink([]*entry{en})
	}
	e.report(en, len(body), out, reason, again)
}

// lost drops an entry whose file cannot be read back.
func (e *Exporter) lost(en *entry, err error) {
	r := ReasonStorageError
	if errors.Is(err, errCorrupt) {
		r = ReasonCorrupt
	}
	e.mu.Lock()
	if r == ReasonCorrupt {
		e.stats.CorruptFiles++
	}
	if e.land(en) {
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

// settle counts an attempt and either ends the entry or has it wait for the next one. reason is
// empty unless the entry was dropped.
func (e *Exporter) settle(en *entry, out outcome, started time.Time, size int64) (reason Reason, again bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.land(en) {
		return "", true
	}
	now := time.Now()
	e.stats.Requests++
	e.stats.RequestBytes += size
	if en.tries > 0 {
		e.stats.Retries++
	}
	en.tries++
	if en.firstAt.IsZero() {
		en.firstAt = started
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
		e.stats.PartialSamples += en.Samples
		e.leave(en)
		return "", false
	case rejected:
		reason = ReasonRejected
	case tooLarge:
		reason = ReasonTooLarge
	case retryable:
		if reason = e.retryOver(en, now); reason == "" {
			e.later(en, out, started, now)
			return "", true
		}
	}
	e.drop(en, reason)
	return reason, false
}

// openGate lets sends through again. The caller holds mu.
func (e *Exporter) openGate() {
	if !e.gate.failing() {
		return
	}
	e.gate.open()
	e.wakeAll()
}

// retryOver tells why an entry is not tried again; empty if it is. The caller holds mu.
func (e *Exporter) retryOver(en *entry, now time.Time) Reason {
	switch limit := e.cfg.Retry.MaxElapsedTime; {
	case e.ctx.Err() != nil:
		return "" // cancelled by this side
	case !e.cfg.Retry.Enabled:
		return ReasonRetryDisabled
	case limit > 0 && now.Sub(en.firstAt) >= limit:
		return ReasonMaxElapsedTime
	}
	return ""
}

// later puts an entry back to wait for its next attempt. The caller holds mu.
func (e *Exporter) later(en *entry, out outcome, started, now time.Time) {
	en.ready = now.Add(max(en.retry.next(e.cfg.Retry), out.wait))
	en.asked = out.wait > 0
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

// unlink removes the files of entries that have left.
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

// persist writes new messages to the storage folder until the exporter stops. A message is sent
// only when it is on disk or cannot be.
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

// nextUnsaved takes the oldest message that is not on disk yet, and makes room for it there.
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
	e.takeOff(en)
	if en.size > e.disk.bound {
		return en, nil
	}
	for e.disk.over(en.size) {
		victim := e.disk.victim()
		if victim == nil {
			break // all in flight: for a moment more than the bound
		}
		e.drop(victim, ReasonStorageFull)
		gone = append(gone, victim)
	}
	return en, gone
}

// saved has a message wait to be sent, from the disk or, if err is set, from memory.
func (e *Exporter) saved(en *entry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.land(en) {
		return
	}
	if err == nil {
		e.memory.release(en)
		en.Body = nil
		en.onDisk = true
		e.disk.charge(en)
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

// Drain waits until everything that was enqueued before the call is delivered or dropped, or,
// while the receiver fails and there is a storage folder, is safely there. When ctx ends first,
// the error says how much is still held; with storage, what is on disk is no error.
// It does not hurry: waits between attempts stay as they are. Only Shutdown cuts them short.
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

// Shutdown drains within ctx, then ends all sends and goroutines. What is still held is dropped
// with the reason "shutdown", or stays in the storage folder for the next start. It returns soon
// after ctx ends, even if the receiver hangs; the error says what was not done. Later calls wait for the first one and return its
// error.
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
	// This is the last chance: do not sit out a wait that nobody asked for.
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
		stuck = errors.New("a send or a write to the storage folder does not end")
	}
	lost := e.abandon()
	if lost > 0 {
		e.log.errorf("shutdown", "dropped %d rows that were still held at shutdown: the receiver did not take them within the deadline", lost)
	}
	err := errors.Join(drainErr, stuck)
	if stuck == nil {
		// Else they are still in use, and closing them could hang too.
		err = errors.Join(err, e.to.close())
		if e.store != nil {
			err = errors.Join(err, e.store.close())
		}
	}
	e.log.close()
	e.shutErr = err
	return err
}

// abandon drops what is in memory and returns its rows.
func (e *Exporter) abandon() (rows int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for en := range e.flying { // sends that do not end
		e.land(en)
	}
	for {
		en := e.memory.victim()
		if en == nil {
			return rows
		}
		rows += en.Rows
		e.drop(en, ReasonShutdown)
	}
}

// Stats returns a consistent snapshot.
func (e *Exporter) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats.clone()
	s.QueueBytes = e.memory.used + e.disk.used
	s.QueueCapacity = e.memory.bound + e.disk.bound
	s.QueueMessages = e.memory.entries + e.disk.entries
	return s
}

// Name is the exporter's name in the settings.
func (e *Exporter) Name() string { return e.cfg.Name }

// Destination names where the exporter sends to, without secrets.
func (e *Exporter) Destination() string { return shownEndpoint(e.cfg) }
