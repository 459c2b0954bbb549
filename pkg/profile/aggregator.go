package profile

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Status is the result of adding a row.
type Status uint8

const (
	// Added means that the row was added.
	Added Status = iota
	// NeedResource means that the row's resource has not been set in this window. Call SetResource, then Add again.
	NeedResource
	// NeedSample means that no row with this key has been seen. Call Insert.
	NeedSample
	// Full means that the memory limit is reached until the next Flush. The row was not added.
	Full
	// ResourceFull means that the row's resource has used its share of the memory limit until the next Flush. The row was not
	// added.
	ResourceFull
)

// nameLabel is the attribute key for Config.NameLabel.
const nameLabel = "__name__"

// keepWindows is the number of windows for which a dictionary is kept. A new dictionary then lacks the unused entries. Reading
// all rows in full again costs little.
const keepWindows = 60

const (
	defaultMaxBytes   = 64 << 20
	defaultMessage    = 3<<20 + 512<<10
	defaultMaxSamples = 16000
)

// Aggregator merges samples. It is safe for concurrent use, except that calls of Flush must not overlap.
type Aggregator struct {
	cfg    Config
	stride int // length of a sample in window.acc: the number of rows, then one value per type

	snapshot sync.Mutex // held during a snapshot; locked before mu

	mu    sync.Mutex
	epoch uint64
	gen   *generation
	win   *window
	spare *window // an empty window for the next Flush; nil while a Flush encodes

	nearFull, renew atomic.Bool

	// temporary memory for Insert, guarded by mu
	locs, attrs []uint32
	named       Frame
	mapped      Mapping

	// Only Flush uses these.
	hosts hostServices
	enc   encoder
}

// window holds the values of one batch window, by sample.
type window struct {
	acc     []int64
	touched []uint32 // samples with rows, in order of their first row
	carried int64    // rows that a later snapshot replaced
	fates   Fates    // numbers of rows by the fate of their stacks
	events  []event
	heads   []int32 // by sample: its newest event, or -1; only for shapes with timestamps
}

// event is one value of one row. A row with several types adds one event for each type, in reverse order. So a walk back from
// the newest event finds type 0 first.
type event struct {
	time  uint64
	value int64
	prev  int32
}

// New returns an empty Aggregator.
func New(cfg Config) *Aggregator {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	a := &Aggregator{cfg: cfg, stride: 1 + len(cfg.Types), epoch: 1, gen: newGeneration(&cfg), win: &window{}, spare: &window{}}
	a.enc.cfg = &a.cfg
	return a
}

// Add adds values, one per type, to the sample of a row with this key. time is in Unix nanoseconds. Only shapes with timestamps
// keep the time. key must depend on everything that makes the sample distinct, including its resource. Add only allocates with
// shapes that keep each event.
func (a *Aggregator) Add(key uint64, values []int64, time uint64) Status {
	a.mu.Lock()
	defer a.mu.Unlock() // if a caller recovers from a panic, Flush must not wait forever
	k, ok := a.gen.keys[key]
	if !ok {
		return NeedSample
	}
	id := k & sampleOf
	if a.gen.resources[a.gen.samples[id].resource].epoch != a.epoch {
		return NeedResource
	}
	return a.add(k, values, time)
}

// A value in generation.keys is a sample's number. The bits from fateShift on hold the fate of the row's stack.
const (
	fateShift = 29
	sampleOf  = 1<<fateShift - 1
)

// SetResource sets the attributes of a resource for the current window. The first call in a window wins. SetResource keeps the
// texts in r, which must not change.
func (a *Aggregator) SetResource(key uint64, r Resource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, ok := a.gen.resourceIDs[key]
	if !ok {
		id = uint32(len(a.gen.resources))
		a.gen.resources = append(a.gen.resources, resource{key: key})
		a.gen.resourceIDs[key] = id
		a.gen.bytes += costResource
	}
	e := &a.gen.resources[id]
	if e.epoch == a.epoch {
		return
	}
	a.gen.bytes -= attrBytes(e.attrs) + attrBytes(e.rest)
	e.attrs, e.rest, e.dropped = a.clean(r.Attributes), a.clean(r.Rest), r.Dropped
	e.host, e.group, e.epoch = r.Host, r.Group, a.epoch
	a.gen.bytes += attrBytes(e.attrs) + attrBytes(e.rest)
}

// clean copies attributes with clean text. It converts values to text if the configuration requires it.
func (a *Aggregator) clean(attrs []Attribute) []Attribute {
	out := make([]Attribute, 0, len(attrs))
	for _, at := range attrs {
		if a.cfg.TextAttributes {
			at.Value = String(at.Value.text())
		}
		at.Value = a.gen.cleanValue(at.Value)
		at.Key = a.gen.clean(at.Key)
		out = append(out, at)
	}
	return out
}

func attrBytes(attrs []Attribute) int64 {
	n := int64(0)
	for _, a := range attrs {
		n += int64(len(a.Key)+len(a.Value.str)) + 56
	}
	return n
}

// Room reports whether Insert would accept a new sample of this resource: Added if so, otherwise NeedResource, Full or
// ResourceFull. Call it before you read a row in full. Then many new stacks cost little.
func (a *Aggregator) Room(resourceKey uint64) Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, st := a.room(resourceKey)
	return st
}

func (a *Aggregator) room(resourceKey uint64) (uint32, Status) {
	id, ok := a.gen.resourceIDs[resourceKey]
	switch {
	case a.used() >= a.cfg.MaxBytes:
		a.nearFull.Store(true)
		return 0, Full
	case !ok || a.gen.resources[id].epoch != a.epoch:
		return 0, NeedResource
	case a.gen.taken(id) >= a.cfg.MaxBytes/2:
		a.nearFull.Store(true)
		return id, ResourceFull
	}
	return id, Added
}

// Insert adds a row with a new key, and assigns the key to s. It returns NeedResource if the resource has not been set in this
// window. Insert copies the strings in s.
func (a *Aggregator) Insert(resourceKey, key uint64, s Sample, values []int64, time uint64) Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.gen
	rid, st := a.room(resourceKey)
	if st == NeedResource {
		return st
	}
	if id, ok := g.keys[key]; ok { // another goroutine was faster
		return a.add(id, values, time)
	}
	if st != Added {
		return st
	}
	before := g.bytes
	var head, tail int // number of locations before and after the pending ones
	a.locs = a.locs[:0]
	if s.Later == nil {
		a.locs = a.frames(a.locs, s.Stack)
	} else {
		a.locs = a.frames(a.locs, s.Stack[:s.LaterFrom])
		head = len(a.locs)
		a.locs = a.frames(a.locs, s.Stack[s.LaterTo:])
		tail = len(a.locs) - head
	}
	a.attrs = a.attrs[:0]
	for _, at := range s.Attributes {
		if a.cfg.TextAttributes {
			at.Value = String(at.Value.text())
		}
		a.attrs = append(a.attrs, g.attribute(at.Key, at.Value))
	}
	if a.cfg.NameLabel != "" {
		a.attrs = append(a.attrs, g.attribute(nameLabel, String(a.cfg.NameLabel)))
	}
	slices.Sort(a.attrs)
	a.attrs = slices.Compact(a.attrs)

	sm := sample{resource: rid, link: g.link(s.Link)}
	var n int64
	sm.attrs, n = g.attrSets.id(&g.hash, a.attrs)
	g.bytes += n
	var id uint32
	if s.Later == nil {
		sm.stack, n = g.stacks.id(&g.hash, a.locs)
		g.bytes += n
		id = g.sample(sm, s.Dropped)
	} else {
		id = g.addPending(sm, s.Dropped, key, s.Later, a.locs[:head], a.locs[head:head+tail])
	}
	id |= uint32(s.Fate) << fateShift
	g.keys[key] = id
	g.bytes += costKey
	g.take(rid, g.bytes-before)
	if a.used() >= a.cfg.MaxBytes/4*3 {
		a.nearFull.Store(true)
	}
	return a.add(id, values, time)
}

// frames interns frames and appends their locations. Most neighbouring frames share their mapping and type. The caller holds
// mu.
func (a *Aggregator) frames(locs []uint32, frames []Frame) []uint32 {
	g := a.gen
	var mapped *Mapping
	var mapping, frameType, last uint32
	if n := len(locs); n > 0 {
		last = locs[n-1]
	}
	for i := range frames {
		f := &frames[i]
		if a.cfg.NameUnnamed && f.Name == "" && (f.Address != 0 || !f.Mapping.isZero()) {
			a.named = *f // a copy: the stack belongs to the caller
			a.named.Name, a.named.Mapping.Symbolized = FileName(f.Mapping.File), !f.Mapping.isZero()
			if a.named.Name == unknownFunction {
				a.named.Address = 0 // without a file, nobody can resolve it
			}
			f = &a.named
		}
		m := uint32(0)
		if !f.Mapping.isZero() {
			if mapped == nil || *mapped != f.Mapping {
				a.mapped = f.Mapping
				mapped, mapping = &a.mapped, g.mapping(f.Mapping)
			}
			m = mapping
		}
		if i == 0 || f.Type != frames[i-1].Type {
			frameType = g.frameType(f.Type)
		}
		if l := g.caller(last, f, m, frameType); l != 0 {
			locs = append(locs, l)
			last = l
		}
	}
	return locs
}

// unknownFunction is the name of a frame with neither name nor file.
const unknownFunction = "[unknown]"

// FileName returns the name of a function if only its file is known. The kernel's files already have brackets.
func FileName(file string) string {
	name := file[strings.LastIndexByte(file, '/')+1:]
	switch {
	case name == "":
		return unknownFunction
	case name[0] == '[':
		return name
	}
	return "[" + name + "]"
}

func (a *Aggregator) used() int64 {
	return a.gen.bytes + a.gen.pendingBytes + int64(len(a.win.events))*costEvent
}

// Renew makes the next Flush begin a new dictionary. All keys are then requested again.
func (a *Aggregator) Renew() { a.renew.Store(true) }

// NearFull reports whether an early Flush would prevent rows from being refused.
func (a *Aggregator) NearFull() bool { return a.nearFull.Load() }

// add adds a row to a key's sample. The caller holds mu.
func (a *Aggregator) add(key uint32, values []int64, time uint64) Status {
	w := a.win
	id := key & sampleOf
	w.acc = grow(w.acc, (int(id)+1)*a.stride)
	acc := w.acc[int(id)*a.stride : (int(id)+1)*a.stride]
	keepsEvents := a.cfg.Shape != ShapeSum
	if keepsEvents && (a.cfg.Shape != ShapeSingle || acc[0] == 0) && a.used() >= a.cfg.MaxBytes {
		a.nearFull.Store(true)
		return Full
	}
	if acc[0] == 0 {
		w.touched = append(w.touched, id)
	}
	acc[0]++
	w.fates[min(key>>fateShift, uint32(fates-1))]++
	for i := range a.cfg.Types {
		if a.cfg.Aggregation == AggregateLast {
			acc[1+i] = values[i]
		} else {
			acc[1+i] = addSaturated(acc[1+i], values[i])
		}
	}
	if keepsEvents {
		a.addEvent(w, id, values, time)
	}
	return Added
}

func (a *Aggregator) addEvent(w *window, id uint32, values []int64, time uint64) {
	for len(w.heads) <= int(id) {
		w.heads = append(w.heads, -1)
	}
	if a.cfg.Shape == ShapeSingle && w.heads[id] >= 0 {
		e := &w.events[w.heads[id]]
		e.time = max(e.time, time)
		return
	}
	for i := len(values) - 1; i >= 0; i-- {
		w.events = append(w.events, event{time: time, prev: w.heads[id], value: values[i]})
		w.heads[id] = int32(len(w.events) - 1)
		if a.cfg.Shape == ShapeSingle {
			return
		}
	}
}

func addSaturated(a, b int64) int64 {
	s := a + b
	if b > 0 && s < a {
		return 1<<63 - 1
	}
	if b < 0 && s > a {
		return -1 << 63
	}
	return s
}

// Snapshot begins a snapshot. The rows until end are the complete state, and Flush waits for end. It drops the window's earlier
// rows, which still count in Message.Rows of the next message. Without AggregateSnapshot, it does nothing.
func (a *Aggregator) Snapshot() (end func()) {
	if a.cfg.Aggregation != AggregateSnapshot {
		return func() {}
	}
	a.snapshot.Lock()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.win.touched {
		acc := a.win.acc[int(id)*a.stride : (int(id)+1)*a.stride]
		a.win.carried += acc[0]
		clear(acc)
	}
	a.win.touched = a.win.touched[:0]
	a.win.dropEvents()
	return a.snapshot.Unlock
}

func (w *window) dropEvents() {
	w.events = w.events[:0]
	for i := range w.heads {
		w.heads[i] = -1
	}
}

// merge adds the rows, values and events of sample from to sample to, and empties from. With last, from's values replace to's
// values.
func (w *window) merge(to, from uint32, stride int, shape Shape, last bool) {
	w.acc = grow(w.acc, (int(to)+1)*stride)
	dst, src := w.acc[int(to)*stride:(int(to)+1)*stride], w.acc[int(from)*stride:(int(from)+1)*stride]
	if dst[0] == 0 {
		w.touched = append(w.touched, to)
	}
	for i := range dst {
		if last && i > 0 {
			dst[i] = src[i]
		} else {
			dst[i] = addSaturated(dst[i], src[i])
		}
	}
	clear(src)
	if int(from) >= len(w.heads) || w.heads[from] < 0 {
		return
	}
	for len(w.heads) <= int(to) {
		w.heads = append(w.heads, -1)
	}
	if oldest := w.heads[from]; shape == ShapeSingle && w.heads[to] >= 0 {
		e := &w.events[w.heads[to]]
		e.time = max(e.time, w.events[oldest].time)
	} else {
		for w.events[oldest].prev >= 0 {
			oldest = w.events[oldest].prev
		}
		w.events[oldest].prev = w.heads[to]
		w.heads[to] = w.heads[from]
	}
	w.heads[from] = -1
}

// reset empties the window for reuse.
func (w *window) reset(stride int) {
	for _, id := range w.touched {
		clear(w.acc[int(id)*stride : (int(id)+1)*stride])
	}
	w.touched = w.touched[:0]
	w.carried, w.fates = 0, Fates{}
	w.dropEvents()
}

// Usage returns the estimated size of dictionary and window in bytes.
func (a *Aggregator) Usage() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used()
}
