package otelprofiles

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// source reads the rows of one data source, once for all exporters. Its callbacks run in the gadget's goroutines. They never wait
// for the network, never return an error, and do not allocate memory for a known stack.
type source struct {
	inst  *instance
	ds    datasource.DataSource
	plan  *fieldmap.Plan // the plan of the first pipeline, which reads the parts that all pipelines share
	pipes []*pipeline    // at least one

	cold  sync.Mutex     // serializes full reads of rows, which can be slow; only the flush of a snapshot waits for it
	stack fieldmap.Stack // stack of the last fully read row; guarded by cold
	of    uint64         // the number of that row; guarded by cold
	rows  uint64         // the number of full reads; guarded by cold

	panicked atomic.Bool // the first panic was logged
}

func (s *source) subscribe() error {
	if s.ds.Type() == datasource.TypeArray {
		return s.ds.SubscribeArray(s.array, subscribePriority)
	}
	return s.ds.Subscribe(s.single, subscribePriority)
}

func (s *source) array(_ datasource.DataSource, rows datasource.DataArray) error {
	n := rows.Len()
	for _, p := range s.pipes {
		p.read.Add(int64(n))
		defer p.agg.Snapshot()()
	}
	for i := range n {
		s.row(rows.Get(i))
	}
	return nil
}

func (s *source) single(_ datasource.DataSource, d datasource.Data) error {
	for _, p := range s.pipes {
		p.read.Add(1)
	}
	s.row(d)
	return nil
}

// row adds a row to the windows of all pipelines. A panic loses the row, but does not end the gadget.
func (s *source) row(d datasource.Data) {
	done := 0 // number of pipelines that have counted the row
	defer func() {
		if r := recover(); r != nil {
			for _, p := range s.pipes[done:] {
				p.dropped[ReasonPanic].Add(1)
			}
			if !s.panicked.Swap(true) {
				s.inst.log.Errorf("%s: data source %q: dropping a row, and all similar ones, because reading it failed; please report this: %q\n%s",
					Name, s.ds.Name(), fmt.Sprint(r), debug.Stack())
			}
		}
	}()
	if s.inst.maps.kept() && !s.pipes[0].closed.Load() {
		s.inst.maps.note(s.plan.StackIDs(d))
	}
	r := row{d: d}
	r.n = len(s.plan.Values(r.values[:0], d)) // never allocates, because values has enough room
	for _, v := range r.values[:r.n] {
		if v != 0 {
			r.nonzero = true
			break
		}
	}
	for i, p := range s.pipes {
		s.feed(p, i == 0, &r)
		done = i + 1
	}
}

// row holds the parts of a row that a source's pipelines share. The first pipeline that needs a part reads it.
type row struct {
	d       datasource.Data
	values  [maxTypes]int64
	n       int    // number of values
	nonzero bool   // at least one value is not 0
	at      uint64 // the row's time; 0 until it is requested

	keyed    bool
	stackKey uint64
	res, key uint64 // keys of the first pipeline, valid if keyed

	number uint64 // the row's number among the fully read rows; 0: not fully read
}

// feed adds a row to the window of one pipeline.
func (s *source) feed(p *pipeline, first bool, r *row) {
	if p.closed.Load() {
		p.dropped[ReasonClosed].Add(1)
		return
	}
	if p.sampling > 1 && rand.Uint64N(p.sampling) != 0 {
		p.dropped[ReasonSampledOut].Add(1)
		return
	}
	if !r.nonzero && !p.last {
		p.dropped[ReasonZero].Add(1)
		return
	}
	values := r.values
	if p.sampling > 1 {
		for i := range values {
			values[i] = times(values[i], int64(p.sampling))
		}
	}
	at := uint64(0)
	if p.timed {
		if r.at == 0 {
			if r.at = s.plan.Timestamp(r.d); r.at == 0 {
				r.at = uint64(time.Now().UnixNano())
			}
		}
		at = r.at
	}
	if !r.keyed {
		r.keyed = true
		r.stackKey = s.plan.StackKey(r.d)
		r.res, r.key = s.plan.KeysOf(r.d, r.stackKey)
	}
	res, key := r.res, r.key
	if !first && !p.sameKeys {
		res, key = p.plan.KeysOf(r.d, r.stackKey)
	}
	st := p.agg.Add(key, values[:r.n], at)
	switch {
	case st == profile.Added:
		return
	case !r.nonzero: // zeros only matter if they replace an earlier value
		p.dropped[ReasonZero].Add(1)
		return
	}
	switch s.unknown(p, r, res, key, values[:r.n], at, st) {
	case profile.Full:
		p.dropped[ReasonFull].Add(1)
		p.wake()
	case profile.ResourceFull:
		p.dropped[ReasonResourceLimit].Add(1)
		p.wake()
	}
}

// unknown adds a row whose stack or resource is new in this window.
func (s *source) unknown(p *pipeline, r *row, res, key uint64, values []int64, at uint64, st profile.Status) profile.Status {
	d := r.d
	s.cold.Lock()
	defer s.cold.Unlock()
	var smp profile.Sample
	read := false
	// If a flush happens between two steps, the aggregator requests the resource again. With a new dictionary, it requests
	// everything again. Flushes are seconds apart, so a few attempts are enough.
	for range 4 {
		switch st {
		case profile.NeedSample:
			room := p.agg.Room(res)
			if room == profile.NeedResource {
				res, key = s.setResource(p, r, res, key)
				room = p.agg.Room(res)
			}
			if room == profile.Full || room == profile.ResourceFull {
				return room
			}
			if !read {
				smp = p.plan.SampleOf(d, s.stackOf(r))
				p.limit(&smp.Attributes, &smp.Dropped)
				read = true
			}
			if st = p.agg.Insert(res, key, smp, values, at); st == profile.NeedResource {
				st = profile.NeedSample
			}
		case profile.NeedResource:
			res, key = s.setResource(p, r, res, key)
			st = p.agg.Add(key, values, at)
		default:
			if p.agg.NearFull() {
				p.wake()
			}
			return st
		}
	}
	return profile.Full
}

// setResource passes a row's resource to the aggregator, and returns the row's keys. The keys change when more becomes known
// about the process. The caller holds cold.
func (s *source) setResource(p *pipeline, r *row, res, key uint64) (uint64, uint64) {
	resource := p.resource(r.d)
	if nowRes, nowKey := p.plan.KeysOf(r.d, r.stackKey); nowRes != res {
		res, key, resource = nowRes, nowKey, p.resource(r.d)
	}
	p.agg.SetResource(res, resource)
	return res, key
}

// stackOf returns a row's stack. The first pipeline that needs it reads it. The caller holds cold.
func (s *source) stackOf(r *row) *fieldmap.Stack {
	if r.number == 0 {
		s.rows++
		r.number = s.rows
	}
	if s.of != r.number {
		s.stack.Forget()
		s.of = r.number
	}
	return &s.stack
}
