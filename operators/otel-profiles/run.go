package otelprofiles

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// sweepInterval is the time between two sweeps of the stack maps, and between two requests for missing names. ageInterval is
// the time between two calls that update the host services' ages.
const (
	sweepInterval = time.Second
	ageInterval   = 10 * time.Second
)

// run flushes each pipeline at its interval. The first interval has a random length, so nodes that start at the same time do
// not all flush at once.
func (i *instance) run() {
	defer close(i.stopped)
	now := time.Now()
	for _, p := range i.pipelines {
		p.next = now.Add(rand.N(p.interval) + 1)
	}
	every := sweepInterval
	if i.names == nil {
		every = ageInterval // another operator supplies the stacks and the names
	}
	sweep := time.NewTicker(every)
	defer sweep.Stop()
	aged := now
	for {
		select {
		case <-i.stop:
			return
		case <-sweep.C:
			i.maps.due.Store(true)
			i.ask()
			if i.hosts != nil && time.Since(aged) > ageInterval-sweepInterval/2 {
				aged = time.Now()
				i.hosts.Age()
			}
			continue
		case <-i.wake:
		case <-time.After(time.Until(i.due())):
		}
		now := time.Now()
		i.flushing.Lock()
		for _, p := range i.pipelines {
			if p.due().After(now) || p.waits(now) {
				continue
			}
			p.flush(now)
			p.schedule(now)
		}
		i.reportLost()
		i.flushing.Unlock()
	}
}

// ask requests names that are missing in the windows' stacks, and reports whether any are missing.
func (i *instance) ask() (pending bool) {
	i.flushing.Lock()
	defer i.flushing.Unlock()
	for _, p := range i.pipelines {
		pending = p.agg.Ask() || pending
	}
	return pending
}

// lastNames is the longest time that a run waits, at its end, for the names in its last stacks.
const lastNames = 2 * time.Second

// awaitNames waits for the names in a run's last stacks. It does not block rows.
func (i *instance) awaitNames() {
	for until := time.Now().Add(lastNames); i.ask() && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
}

// due returns when the next pipeline must be flushed.
func (i *instance) due() time.Time {
	i.flushing.Lock() // Shutdown also flushes
	defer i.flushing.Unlock()
	next := i.pipelines[0].due()
	for _, p := range i.pipelines[1:] {
		if d := p.due(); d.Before(next) {
			next = d
		}
	}
	return next
}

func (i *instance) flush() {
	i.flushing.Lock()
	defer i.flushing.Unlock()
	now := time.Now()
	for _, p := range i.pipelines {
		p.flush(now)
	}
	i.reportLost()
}

// summarize logs what happened to the rows when a gadget ends.
func (i *instance) summarize() {
	for _, p := range i.pipelines {
		c := p.counts()
		where := "delivered or held by the exporter"
		if !i.remote {
			st := p.exp.Stats().Rows
			where = fmt.Sprintf("exporter %q: %d delivered, %d held, %d in partly accepted requests, %d dropped%s",
				p.exp.cfg.Name, st.Delivered, st.Held, st.Partial, st.DroppedTotal(), reasons(st.Dropped))
		}
		i.log.Infof("%s: data source %q: %d rows read, %d exported, %d not exported%s, %d without stack; %s%s%s",
			Name, p.ds.Name(), c.Read, c.Exported, c.droppedTotal(), reasons(c.Dropped), c.Fates[profile.NoStack], where, c.stacks(), c.frames()+i.unread(c))
	}
	if n := i.lost(); n > 0 {
		i.log.Warnf("%s: Inspektor Gadget lost at least %d events, because it did not read them in time: they are in no row", Name, n)
	}
}

// unread returns the last error from reading a file, if any frame belongs to an unread file.
func (i *instance) unread(c Counts) string {
	if i.unreadFile == nil || c.Frames[names.BadSymbols]+c.Frames[names.Replaced] == 0 {
		return ""
	}
	return fmt.Sprintf("; the last file that could not be read: %v", i.unreadFile)
}

// check warns about a run without delivered rows or without stacks. With ParamCheck, it also stores the warning for Failed. If
// another operator ended the run, ended is its reason, which the log already contains.
func (i *instance) check(ended error) {
	var read, delivered int64
	for _, p := range i.pipelines {
		read += p.read.Load()
	}
	for _, exp := range i.exporters {
		r := exp.Stats().Rows
		delivered += r.Delivered + r.Partial
	}
	var err error
	said := false
	switch bare := i.bare(); {
	case read == 0 && !i.started:
		return // the failed operator reports the reason
	case read == 0 && ended != nil:
		err, said = ended, true
	case read == 0:
		err = errors.New("nothing was exported, because the gadget had no rows: its filters (such as --pid or a container's name) matched nothing, or there were no events")
	case delivered == 0 && !i.remote:
		err = fmt.Errorf("of %d rows, none was delivered", read)
	case bare != nil:
		err = fmt.Errorf("data source %q: %s", bare.ds.Name(), bare.absent(bare.counts()))
		said = bare.said.Had("no stack")
	default:
		return
	}
	if !said {
		i.log.Warnf("%s: %v", Name, err)
	}
	if i.mustDeliver {
		i.op.mu.Lock()
		i.op.failed = fmt.Errorf("%s: %w", Name, err)
		i.op.mu.Unlock()
	}
}

// bare returns one of the pipelines if nearly all rows of all pipelines lack a stack. Otherwise it returns nil.
func (i *instance) bare() *pipeline {
	for _, p := range i.pipelines {
		if !p.counts().bare() {
			return nil
		}
	}
	return i.pipelines[0]
}

// reasons formats counts by reason as " (a 1, b 2)".
func reasons[K ~string](m map[K]int64) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] > 0 {
			list = append(list, fmt.Sprintf("%s %d", string(k), m[k]))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}
