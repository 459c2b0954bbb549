package history

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// RareStacks is the frame that stands for the callers of stacks that an answer has no room for.
const RareStacks = "[rare stacks]"

// Bounds of an answer.
const (
	maxEntries    = 200_000   // samples, each as often as there are times that it is told apart by
	maxDictionary = 128 << 20 // bytes
	profileIDSize = 16
	steps         = 60 // times at the least, before there are too many samples
)

// Answer is what a history says to a Query.
type Answer struct {
	// Request has the samples, those of a stack added up, in profiles of Step each.
	Request *collectorpb.ExportProfilesServiceRequest
	Step    time.Duration
	// Summary is of what was added up. Its rows are those of whole requests, so they are 0 where a service was asked for.
	Summary Summary
	// Damaged are the segments that could not be read to their end.
	Damaged []Damage
	// Rare is how many samples have RareStacks in place of their callers.
	Rare int64
	// Gaps are the times in which nothing was recorded, of half a minute or more between two records.
	Gaps []Gap
}

// Gap is a time without records.
type Gap struct{ From, To time.Time }

// minGap is the shortest gap that is told of, beside twice the length of the records around it.
const minGap = 30 * time.Second

type group struct {
	resource, scope, measure uint32
	step                     int64
}

type sampleKey struct{ node, set, link uint32 }

type sums struct {
	values     map[sampleKey]int64
	start, end uint64
	dropped    uint64
	state      bool
}

type answer struct {
	q       Query
	to      *interned
	width   int64 // of a step, in nanoseconds
	longest uint64
	groups  map[group]*sums
	entries int
	newest  map[[2]uint32]uint64 // of states, by the texts of type and unit
	rare    int64
	last    time.Time // end of the latest record
	out     Answer
}

// Read answers a question from a folder. It reads one segment after the other, so that it takes memory for one, and for its answer, which
// is bounded: first the steps become longer, then rare stacks lose their callers. The sums stay exact.
func Read(dir string, q Query) (Answer, error) {
	list, err := segments(dir)
	if err != nil {
		return Answer{}, err
	}
	unpack, err := newDecompressor()
	if err != nil {
		return Answer{}, err
	}
	defer unpack.Close()
	until := q.To
	if until.IsZero() {
		until = time.Now()
	}
	a := &answer{q: q, to: newInterned(), width: int64(step(until.Sub(q.From))), groups: map[group]*sums{}, newest: map[[2]uint32]uint64{}}
	for _, s := range list {
		if err := a.segment(dir, s.seq, unpack); err != nil {
			return Answer{}, err
		}
	}
	for int64(a.longest) > a.width && len(a.groups) > 0 {
		a.coarsen()
	}
	a.out.Summary.sort()
	a.out.Rare, a.out.Step = a.rare, time.Duration(a.width)
	a.out.Request = a.request()
	return a.out, nil
}

// step returns how long a step is for a range.
func step(length time.Duration) time.Duration {
	for _, d := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute} {
		if length <= steps*d {
			return d
		}
	}
	return max(time.Hour, (length / steps).Truncate(time.Hour))
}

func (a *answer) segment(dir string, seq uint64, unpack *zstd.Decoder) error {
	f, err := openSegment(dir, seq)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // its time was over
	case err != nil:
		return err
	}
	defer f.Close()
	if s, ok := readSummary(f); ok && a.q.skips(s) {
		return nil
	}
	from := &tables{}
	tr := &translator{from: from, to: a.to}
	var b block
	err = records(f, unpack, func(m wire.Message, payload string) error {
		c, err := from.readEntries(payload)
		if err != nil {
			return err
		}
		tr.grow()
		a.record(m)
		for range c.count() {
			if err := b.read(&c); err != nil {
				return err
			}
			a.profile(tr, &b)
		}
		if a.entries > maxEntries || a.to.bytes > maxDictionary {
			a.shrink()
			*tr = translator{from: from, to: a.to}
			tr.grow()
		}
		return nil
	})
	var damage Damage
	if errors.As(err, &damage) {
		a.out.Damaged = append(a.out.Damaged, damage)
		return nil
	}
	return err
}

// record counts a record, and notes a gap before it.
func (a *answer) record(m wire.Message) {
	if !a.q.covers(m.Start) {
		return
	}
	if gap := m.Start.Sub(a.last); !a.last.IsZero() && gap > max(minGap, 2*m.End.Sub(m.Start)) {
		a.out.Gaps = append(a.out.Gaps, Gap{a.last, m.Start})
	}
	a.last = m.End
	rows := m.Rows
	if a.q.Service != "" || a.q.Gadget != "" {
		rows = 0
	}
	a.out.Summary.record(m.Start, m.End, rows)
}

// profile adds a profile if it is asked for.
func (a *answer) profile(tr *translator, b *block) {
	at := time.Unix(0, int64(b.time))
	if !a.q.covers(at) {
		return
	}
	service, gadget := tr.from.service(b.resource), tr.from.scope(b.scope)
	if !a.q.takes(service, gadget) {
		return
	}
	g := group{tr.of(resource, b.resource), tr.of(scope, b.scope), tr.of(measure, b.measure), at.Sub(a.q.From).Nanoseconds() / a.width}
	entry := a.to.entry(measure, g.measure)
	c := cursor{in: entry}
	kind := [2]uint32{uint32(c.uint()), uint32(c.uint())}
	one := Sum{Samples: int64(len(b.values))}
	for _, v := range b.values {
		one.Value += v
	}
	if b.duration == 0 {
		one.State = b.time
		g.step = 0
		switch newest := a.newest[kind]; {
		case b.time < newest:
			return
		case b.time > newest:
			a.forget(kind)
			a.newest[kind] = b.time
		}
	}
	typ := a.to.entry(text, kind[0])
	unit := a.to.entry(text, kind[1])
	a.out.Summary.sum(sumKey{service, gadget, typ, unit}).merge(one)
	a.longest = max(a.longest, b.duration)
	s := a.groups[g]
	if s == nil {
		s = &sums{values: map[sampleKey]int64{}, start: b.time, state: b.duration == 0}
		a.groups[g] = s
	}
	s.start, s.end, s.dropped = min(s.start, b.time), max(s.end, b.time+b.duration), s.dropped+b.dropped
	before := len(s.values)
	for i, v := range b.values {
		s.values[sampleKey{tr.node(b.stacks[i]), tr.of(set, b.sets[i]), tr.of(link, b.links[i])}] += v
	}
	a.entries += len(s.values) - before
}

// forget drops what a newer state replaces.
func (a *answer) forget(kind [2]uint32) {
	for g, s := range a.groups {
		entry := a.to.entry(measure, g.measure)
		c := cursor{in: entry}
		if s.state && kind == [2]uint32{uint32(c.uint()), uint32(c.uint())} {
			a.entries -= len(s.values)
			delete(a.groups, g)
		}
	}
}

// shrink makes room: longer steps, and if there is only one, shorter stacks.
func (a *answer) shrink() {
	for a.entries > maxEntries/2 && a.moreSteps() {
		a.coarsen()
	}
	for share := maxEntries / 4; a.entries > maxEntries/2 || a.to.bytes > maxDictionary/2; share /= 4 {
		a.cut(share)
		a.compact()
		if share == 0 {
			return
		}
	}
}

func (a *answer) moreSteps() bool {
	for g := range a.groups {
		if g.step > 0 {
			return true
		}
	}
	return false
}

// coarsen doubles the steps.
func (a *answer) coarsen() {
	a.width *= 2
	a.regroup(func(g group) group { g.step /= 2; return g }, func(k sampleKey, _ int64) sampleKey { return k })
}

// regroup adds up what has the same keys by then.
func (a *answer) regroup(group2 func(group) group, sample func(sampleKey, int64) sampleKey) {
	old := a.groups
	a.groups, a.entries = make(map[group]*sums, len(old)), 0
	for g, s := range old {
		to := a.groups[group2(g)]
		if to == nil {
			to = &sums{values: make(map[sampleKey]int64, len(s.values)), start: s.start, state: s.state}
			a.groups[group2(g)] = to
		}
		to.start, to.end, to.dropped = min(to.start, s.start), max(to.end, s.end), to.dropped+s.dropped
		before := len(to.values)
		for k, v := range s.values {
			to.values[sample(k, v)] += v
		}
		a.entries += len(to.values) - before
	}
}

// cut leaves the stacks of the most samples, and of the rest the innermost frame.
func (a *answer) cut(most int) {
	var values []int64
	for _, s := range a.groups {
		for _, v := range s.values {
			values = append(values, v)
		}
	}
	slices.SortFunc(values, func(x, y int64) int { return cmp.Compare(y, x) })
	least := int64(-1) << 63
	if most < len(values) {
		least = values[most]
	}
	root := a.to.node(0, rareLocation(a.to))
	a.regroup(func(g group) group { return g }, func(k sampleKey, v int64) sampleKey {
		if v > least || k.node == root {
			return k
		}
		a.rare++
		if most == 0 || k.node == 0 {
			return sampleKey{node: root}
		}
		return sampleKey{node: a.to.node(root, a.to.places[k.node-1])}
	})
}

// compact drops what the dictionary has and nothing refers to.
func (a *answer) compact() {
	tr := &translator{from: &a.to.tables, to: newInterned()}
	tr.grow()
	newest := make(map[[2]uint32]uint64, len(a.newest))
	for kind, at := range a.newest {
		newest[[2]uint32{tr.of(text, kind[0]), tr.of(text, kind[1])}] = at
	}
	a.regroup(func(g group) group {
		return group{tr.of(resource, g.resource), tr.of(scope, g.scope), tr.of(measure, g.measure), g.step}
	}, func(k sampleKey, _ int64) sampleKey {
		return sampleKey{tr.node(k.node), tr.of(set, k.set), tr.of(link, k.link)}
	})
	a.to, a.newest = tr.to, newest
}

// service returns the service of a resource.
func (t *tables) service(i uint32) string {
	entry := t.entry(resource, i)
	rp := &profilespb.ResourceProfiles{}
	if proto.Unmarshal([]byte(entry), rp) != nil {
		return ""
	}
	return serviceOf(rp.GetResource().GetAttributes())
}

// scope returns the name of a scope.
func (t *tables) scope(i uint32) string {
	entry := t.entry(scope, i)
	sp := &profilespb.ScopeProfiles{}
	if proto.Unmarshal([]byte(entry), sp) != nil {
		return ""
	}
	return sp.GetScope().GetName()
}

// request returns the sums in the form of OTLP.
func (a *answer) request() *collectorpb.ExportProfilesServiceRequest {
	d := a.to.dictionary()
	req := &collectorpb.ExportProfilesServiceRequest{Dictionary: d}
	order := make([]group, 0, len(a.groups))
	for g := range a.groups {
		order = append(order, g)
	}
	slices.SortFunc(order, func(x, y group) int {
		return cmp.Or(cmp.Compare(x.resource, y.resource), cmp.Compare(x.scope, y.scope), cmp.Compare(x.step, y.step), cmp.Compare(x.measure, y.measure))
	})
	stacks := map[uint32]int32{0: 0}
	var rp *profilespb.ResourceProfiles
	var sp *profilespb.ScopeProfiles
	last := group{}
	for i, g := range order {
		if i == 0 || g.resource != last.resource {
			rp, sp = &profilespb.ResourceProfiles{}, nil
			entry := a.to.entry(resource, g.resource)
			_ = proto.Unmarshal([]byte(entry), rp) // what is damaged is empty
			req.ResourceProfiles = append(req.ResourceProfiles, rp)
		}
		if sp == nil || g.scope != last.scope {
			sp = &profilespb.ScopeProfiles{}
			entry := a.to.entry(scope, g.scope)
			_ = proto.Unmarshal([]byte(entry), sp)
			rp.ScopeProfiles = append(rp.ScopeProfiles, sp)
		}
		last = g
		sp.Profiles = append(sp.Profiles, a.profileOf(d, g, stacks))
	}
	return req
}

func (a *answer) profileOf(d *profilespb.ProfilesDictionary, g group, stacks map[uint32]int32) *profilespb.Profile {
	s := a.groups[g]
	entry := a.to.entry(measure, g.measure)
	c := cursor{in: entry}
	p := &profilespb.Profile{
		SampleType: &profilespb.ValueType{TypeStrindex: int32(c.uint()), UnitStrindex: int32(c.uint())},
		PeriodType: &profilespb.ValueType{TypeStrindex: int32(c.uint()), UnitStrindex: int32(c.uint())},
		Period:     int64(c.uint()), TimeUnixNano: s.start, DurationNano: s.end - s.start, DroppedAttributesCount: uint32(s.dropped),
	}
	p.AttributeIndices = a.to.setOf(uint32(c.uint()))
	p.ProfileId = make([]byte, profileIDSize)
	_, _ = rand.Read(p.ProfileId) // it never fails
	keys := make([]sampleKey, 0, len(s.values))
	for k := range s.values {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y sampleKey) int {
		return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.set, y.set), cmp.Compare(x.link, y.link))
	})
	for _, k := range keys {
		i, ok := stacks[k.node]
		if !ok {
			i = int32(len(d.StackTable))
			stacks[k.node] = i
			d.StackTable = append(d.StackTable, &profilespb.Stack{LocationIndices: a.to.stackOf(k.node)})
		}
		p.Samples = append(p.Samples, &profilespb.Sample{StackIndex: i, AttributeIndices: a.to.setOf(k.set), LinkIndex: int32(k.link), Values: []int64{s.values[k]}})
	}
	return p
}

// List returns the summary of each segment of a folder, the oldest first, with the bytes that it takes.
func List(dir string) (list []Segment, err error) {
	files, err := segments(dir)
	if err != nil {
		return nil, err
	}
	unpack, err := newDecompressor()
	if err != nil {
		return nil, err
	}
	defer unpack.Close()
	for _, f := range files {
		s, err := summarize(dir, f, unpack)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil && !errors.As(err, new(Damage)) {
			return nil, err
		}
		s.Err = err
		list = append(list, s)
	}
	return list, nil
}

// Segment is a part of a history.
type Segment struct {
	Summary
	Bytes int64
	// Err says that a part of it could not be read.
	Err error
}

// summarize returns the summary of a segment: that at its end, or else one of its records.
func summarize(dir string, of file, unpack *zstd.Decoder) (Segment, error) {
	out := Segment{Bytes: of.size}
	f, err := openSegment(dir, of.seq)
	if err != nil {
		return out, err
	}
	defer f.Close()
	if s, ok := readSummary(f); ok {
		out.Summary = s
		return out, nil
	}
	from := &tables{}
	var b block
	err = records(f, unpack, func(m wire.Message, payload string) error {
		c, err := from.readEntries(payload)
		if err != nil {
			return err
		}
		out.record(m.Start, m.End, m.Rows)
		for range c.count() {
			if err := b.read(&c); err != nil {
				return err
			}
			one := Sum{Samples: int64(len(b.values))}
			for _, v := range b.values {
				one.Value += v
			}
			if b.duration == 0 {
				one.State = b.time
			}
			entry := from.entry(measure, b.measure)
			mc := cursor{in: entry}
			typ := from.entry(text, uint32(mc.uint()))
			unit := from.entry(text, uint32(mc.uint()))
			out.sum(sumKey{from.service(b.resource), from.scope(b.scope), typ, unit}).merge(one)
		}
		return nil
	})
	return out, err
}

// Total adds up summaries.
func Total(list []Segment) (s Summary) {
	for _, one := range list {
		s.merge(one.Summary)
	}
	s.sort()
	return s
}
