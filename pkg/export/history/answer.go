package history

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// RareStacks is the name of the frame that replaces the callers of rare stacks in a limited answer.
const RareStacks = "[rare stacks]"

const (
	profileIDSize = 16
	steps         = 60 // the minimum number of steps in a range
)

// Answer is the result of a Query.
type Answer struct {
	// Request contains the samples, summed by stack, in profiles of length Step. The first profile begins at From.
	Request *collectorpb.ExportProfilesServiceRequest
	From    time.Time
	Step    time.Duration
	// Summary describes the summed data. The number of rows is 0 if the query selects a service or a gadget, because rows are
	// counted per request.
	Summary Summary
	// Damaged has an error for each segment that could not be read to its end.
	Damaged []error
	// Rare is the number of samples whose callers are replaced by RareStacks.
	Rare int64
	// Gaps lists the periods without records that last at least half a minute.
	Gaps []Gap
}

// Gap is a period without records.
type Gap struct{ From, To time.Time }

// minGap is the shortest reported gap. A gap must also be more than twice as long as the record that follows it.
const minGap = 30 * time.Second

type group struct {
	resource, scope, measure uint32
	step                     int64
}

type sampleKey struct{ node, set, link uint32 }

// amount holds the sum and the number of a key's samples.
type amount struct{ value, samples int64 }

func (a amount) plus(b amount) amount { return amount{a.value + b.value, a.samples + b.samples} }

type sums struct {
	values     map[sampleKey]amount
	start, end uint64
	dropped    uint64
	state      bool
}

type answer struct {
	q       Query
	most    int // maximum number of entries
	to      *interned
	width   int64 // the length of a step, in nanoseconds
	longest uint64
	groups  map[group]*sums
	entries int
	newest  map[[2]string]uint64 // time of the newest state, by type and unit
	root    uint32               // the node of RareStacks, 0 if unused
	last    time.Time            // end of the latest record
	out     Answer
}

// Read answers a query from a folder. It reads one segment at a time, so it needs memory for one segment and the answer. To
// limit the answer, rare stacks lose their callers, but the sums stay exact.
func Read(dir string, q Query) (Answer, error) { return readAnswer(dir, q, maxEntries) }

func readAnswer(dir string, q Query, most int) (Answer, error) {
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
	a := newAnswer(q, most, int64(step(until.Sub(q.From))))
	for _, s := range list {
		if err := a.segment(dir, s.seq, unpack); err != nil {
			return Answer{}, err
		}
	}
	for a.longest > uint64(a.width) && a.moreSteps() {
		a.coarsen()
	}
	if a.root != 0 {
		a.compact()
	}
	a.out.Summary.sort()
	a.out.Rare, a.out.From, a.out.Step, a.out.Request = a.rare(), q.From, time.Duration(a.width), a.request()
	return a.out, nil
}

func newAnswer(q Query, most int, width int64) *answer {
	return &answer{q: q, most: most, to: newInterned(), width: width, groups: map[group]*sums{}, newest: map[[2]string]uint64{}}
}

// step returns the length of a step for a range of the given length.
func step(length time.Duration) time.Duration {
	out := 10 * time.Second
	for _, d := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, (length / steps).Truncate(time.Hour)} {
		if length >= steps*d {
			out = max(out, d)
		}
	}
	return out
}

func (a *answer) segment(dir string, seq uint64, unpack *zstd.Decoder) error {
	f, err := openSegment(dir, seq)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // the writer removed it because of its age
	case err != nil:
		return err
	}
	defer f.Close()
	if s, ok := readSummary(f); ok && a.q.skips(s) {
		return nil
	}
	if err := a.read(f, unpack); err != nil {
		a.out.Damaged = append(a.out.Damaged, err)
	}
	return nil
}

// read adds a segment's records up to the first damaged one.
func (a *answer) read(f *os.File, unpack *zstd.Decoder) error {
	from := &tables{}
	tr := &translator{from: from, to: a.to}
	var b block
	return records(f, unpack, func(m wire.Message, payload string) error {
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
		if a.entries > a.most || a.to.bytes > maxDictionary {
			a.shrink()
			*tr = translator{from: from, to: a.to}
			tr.grow()
		}
		return nil
	})
}

// record counts a record and finds the gap before it.
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
	a.out.Summary.merge(Summary{Start: m.Start, End: m.End, Records: 1, Rows: rows})
}

// profile adds a profile if the query selects it.
func (a *answer) profile(tr *translator, b *block) {
	at := time.Unix(0, int64(b.time))
	if !a.q.covers(at) {
		return
	}
	var rp profilespb.ResourceProfiles
	var sp profilespb.ScopeProfiles
	tr.from.message(resource, b.resource, &rp)
	tr.from.message(scope, b.scope, &sp)
	service, gadget := serviceOf(rp.GetResource().GetAttributes()), sp.GetScope().GetName()
	if !a.q.Takes(service, gadget) {
		return
	}
	g := group{tr.of(resource, b.resource), tr.of(scope, b.scope), tr.of(measure, b.measure), at.Sub(a.q.From).Nanoseconds() / a.width}
	kind := a.to.typeUnit(g.measure)
	one := Sum{sumKey: sumKey{service, gadget, kind[0], kind[1]}, Samples: int64(len(b.values))}
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
	a.out.Summary.add(one)
	a.longest = max(a.longest, b.duration)
	s := a.groups[g]
	if s == nil {
		s = &sums{values: map[sampleKey]amount{}, start: b.time, state: b.duration == 0}
		a.groups[g] = s
	}
	s.start, s.end, s.dropped = min(s.start, b.time), max(s.end, b.time+b.duration), s.dropped+b.dropped
	before := len(s.values)
	for i, v := range b.values {
		k := sampleKey{tr.node(b.stacks[i]), tr.of(set, b.sets[i]), tr.of(link, b.links[i])}
		s.values[k] = s.values[k].plus(amount{v, 1})
	}
	a.entries += len(s.values) - before
}

// forget removes the states that a newer state replaces.
func (a *answer) forget(kind [2]string) {
	for g, s := range a.groups {
		if s.state && kind == a.to.typeUnit(g.measure) {
			a.entries -= len(s.values)
			delete(a.groups, g)
		}
	}
}

// typeUnit returns the type and the unit of a measure.
func (t *tables) typeUnit(i uint32) [2]string {
	c := cursor{in: t.entry(measure, i)}
	return [2]string{t.entry(text, uint32(c.uint())), t.entry(text, uint32(c.uint()))}
}

// message decodes an entry into m. What is damaged stays empty.
func (t *tables) message(k kind, i uint32, m proto.Message) {
	_ = proto.Unmarshal([]byte(t.entry(k, i)), m)
}

// request returns the sums as OTLP.
func (a *answer) request() *collectorpb.ExportProfilesServiceRequest {
	d := a.to.dictionary()
	req := &collectorpb.ExportProfilesServiceRequest{Dictionary: d}
	order := slices.SortedFunc(maps.Keys(a.groups), func(x, y group) int {
		return cmp.Or(cmp.Compare(x.resource, y.resource), cmp.Compare(x.scope, y.scope), cmp.Compare(x.step, y.step), cmp.Compare(x.measure, y.measure))
	})
	stacks := map[uint32]int32{0: 0}
	var rp *profilespb.ResourceProfiles
	var sp *profilespb.ScopeProfiles
	for i, g := range order {
		another := i == 0 || g.resource != order[i-1].resource
		if another {
			rp = &profilespb.ResourceProfiles{}
			a.to.message(resource, g.resource, rp)
			req.ResourceProfiles = append(req.ResourceProfiles, rp)
		}
		if another || g.scope != order[i-1].scope {
			sp = &profilespb.ScopeProfiles{}
			a.to.message(scope, g.scope, sp)
			rp.ScopeProfiles = append(rp.ScopeProfiles, sp)
		}
		sp.Profiles = append(sp.Profiles, a.profileOf(d, g, stacks))
	}
	return req
}

func (a *answer) profileOf(d *profilespb.ProfilesDictionary, g group, stacks map[uint32]int32) *profilespb.Profile {
	s := a.groups[g]
	c := cursor{in: a.to.entry(measure, g.measure)}
	p := &profilespb.Profile{
		SampleType: &profilespb.ValueType{TypeStrindex: int32(c.uint()), UnitStrindex: int32(c.uint())},
		PeriodType: &profilespb.ValueType{TypeStrindex: int32(c.uint()), UnitStrindex: int32(c.uint())},
		Period:     int64(c.uint()), TimeUnixNano: s.start, DurationNano: s.end - s.start, DroppedAttributesCount: uint32(s.dropped),
	}
	p.AttributeIndices = a.to.setOf(uint32(c.uint()))
	p.ProfileId = make([]byte, profileIDSize)
	_, _ = rand.Read(p.ProfileId) // rand.Read never fails
	keys := slices.SortedFunc(maps.Keys(s.values), func(x, y sampleKey) int {
		return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.set, y.set), cmp.Compare(x.link, y.link))
	})
	for _, k := range keys {
		i, ok := stacks[k.node]
		if !ok {
			i = int32(len(d.StackTable))
			stacks[k.node] = i
			d.StackTable = append(d.StackTable, &profilespb.Stack{LocationIndices: a.to.stackOf(k.node)})
		}
		p.Samples = append(p.Samples, &profilespb.Sample{StackIndex: i, AttributeIndices: a.to.setOf(k.set), LinkIndex: int32(k.link), Values: []int64{s.values[k].value}})
	}
	return p
}
