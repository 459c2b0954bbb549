package export

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/otlp"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// The wait between attempts to open an exporter doubles from openFirstWait to openLongestWait.
const openFirstWait, openLongestWait = time.Second, 30 * time.Second

var errStopped = errors.New("the exporter was stopped")

var errOpenHangs = errors.New("a file or folder that the settings name has not responded so far: check its file system")

// New starts an exporter. Package config has checked the settings. New does not connect to the receiver. The caller stops the
// exporter with Shutdown.
//
// New returns at once, because the file system of a certificate, of a secret file or of the storage folder can hang. Until these
// files are open, the exporter holds messages in memory and keeps trying. See Opened.
func New(cfg config.Exporter, opts Options) *Exporter {
	e := prepare(cfg, opts)
	go e.run(e.newSender)
	return e
}

// prepare returns an exporter that takes messages. Only run sends them.
func prepare(cfg config.Exporter, opts Options) *Exporter {
	if opts.Logger == nil {
		opts.Logger = logrus.StandardLogger()
	}
	if cfg.Transport == config.TransportFile {
		// These settings apply only to the network, as package config documents. The file transports rely on a single consumer.
		cfg.Timeout, cfg.Queue.NumConsumers, cfg.Queue.Storage = math.MaxInt64, 1, ""
	}
	a := otlp.NewAuth(cfg)
	e := &Exporter{
		cfg: cfg, now: opts.Now, obs: opts.Observer, auth: a,
		log:  newEventLog(opts.Logger, fmt.Sprintf("exporter %q (%s to %s): ", cfg.Name, cfg.Transport, cfg.Destination()), a.Secrets),
		life: life{tried: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{})},
		state: state{
			memory: newBudget(cfg.Queue.Size), disk: newBudget(0), queue: newSendQueue(),
			wake: make(chan struct{}), drains: map[*drain]struct{}{},
			stats: Stats{Rows: RowCounts{Dropped: map[Reason]int64{}}},
		},
	}
	if e.now == nil {
		e.now = time.Now
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Opened waits for the first attempt to open the exporter's files and folders. It returns the error of the latest attempt, which
// names the setting, not the exporter. If ctx ends first, the error says that a file system hangs.
func (e *Exporter) Opened(ctx context.Context) error {
	select {
	case <-e.tried:
	case <-ctx.Done():
		return errOpenHangs
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.openErr
}

// run opens the exporter and then sends until it is stopped.
func (e *Exporter) run(connect func() (sender, error)) {
	defer close(e.done)
	wait := openFirstWait
	for first := true; ; first = false {
		err := e.open(connect)
		e.mu.Lock()
		e.openErr = err
		e.mu.Unlock()
		if first {
			close(e.tried)
		}
		if err == nil {
			if !first {
				e.log.infof("opened", "ready, starting to send")
			}
			break
		}
		if errors.Is(err, errStopped) {
			return
		}
		e.log.errorf("open", "not ready, retrying (up to %s of data are held in memory until then): %v", humanize.IBytes(uint64(e.cfg.Queue.Size)), err)
		if patience.Within(e.ctx.Done(), wait+rand.N(wait/10)) {
			return
		}
		wait = min(2*wait, openLongestWait)
	}

	var wg sync.WaitGroup
	for range max(e.cfg.Queue.NumConsumers, 1) {
		wg.Go(e.work)
	}
	if e.store != nil {
		wg.Go(e.persist)
	}
	wg.Wait()
}

// open makes one attempt to open the files and folders in the settings. connect returns the sender.
func (e *Exporter) open(connect func() (sender, error)) error {
	to, err := connect()
	if secrets := e.auth.Check(); secrets != nil {
		if err != nil {
			return fmt.Errorf("%w; %w", err, secrets)
		}
		return errors.Join(secrets, to.Close())
	}
	if err != nil {
		return err
	}
	var store *spool.Folder
	var found spool.Inventory
	if e.cfg.Queue.Storage != "" {
		if store, found, err = spool.Open(e.cfg.Queue.Storage, e.cfg.OTLPVersion); err != nil {
			return errors.Join(err, to.Close())
		}
	}
	e.mu.Lock()
	if e.stopped { // Shutdown was called meanwhile and did not wait
		e.mu.Unlock()
		err := to.Close()
		if store != nil {
			err = errors.Join(err, store.Close())
		}
		return errors.Join(errStopped, err)
	}
	e.to, e.store = to, store
	if store != nil {
		e.disk.bound, e.disk.limit = e.cfg.Queue.StorageSize, maxStored
	}
	e.opened = true
	e.mu.Unlock()
	if store != nil {
		e.takeOver(found)
	}
	return nil
}
