package history

import (
	"cmp"
	"crypto/rand"
	"maps"
	"os"
	"slices"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// RareStacks is the name of the frame that replaces the callers of rare stacks in a limited answer.
const RareStacks = "[rare stacks]"

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
	resource, scope, measure int32
	step                     int64
}

type sampleKey struct{ stack, set, link int32 }

// amount holds the sum and the number of a key's samples.
type amount struct{ value, samples int64 }

func (a amount) plus(b amount) amount { return amount{a.value + b.value, a.samples + b.samples} }

type sums struct {
	values     map[sampleKey]amount
	start, end uint64
	dropped    uint32
	kind       [2]string // type and unit
	lasts      uint64    // how long a state applies if its run ends, in nanoseconds; otherwise 0
}

type answer struct {
	q        Query
	most     int // maximum number of entries
	to       *interned
	width    int64  // the length of a step, in nanoseconds
	longest  uint64 // profile, in nanoseconds
	lastStep int64
	groups   map[group]*sums
	entries  int
	newest   map[[2]string]uint64 // time of the newest state, by type and unit
	followed map[int64]bool       // start times of states' intervals
	rare     int32                // the location of RareStacks, 0 if unused
	last     time.Time            // end of the latest record
	out      Answer
}

// Read answers a query from a folder. It reads one segment at a time, so it needs memory for one segment and the answer. To
// limit the answer, rare stacks lose their callers, but the sums stay exact.
func Read(dir string, q Query) (Answer, error) { return readAnswer(dir, q, maxEntries) }

func readAnswer(dir string, q Query, most int) (Answer, error) {
	a := newAnswer(q, most)
	err := eachSegment(dir, func(f *os.File, of file) {
		if s, ok := readSummary(f, of); ok && q.skips(s) {
			return
		}
		if err := a.read(f, of); err != nil {
			a.out.Damaged = append(a.out.Damaged, err)
		}
	})
	if err != nil {
		return Answer{}, err
	}
	a.forget()
	for a.longest > uint64(a.width) && a.lastStep > 0 {
		a.coarsen()
	}
	if a.rare != 0 || len(a.newest) > 0 { // some entries have become unused
		a.compact()
	}
	a.out.Summary.sort()
	a.out.Rare, a.out.From, a.out.Step, a.out.Request = a.countRare(), q.From, time.Duration(a.width), a.request()
	return a.out, nil
}

func newAnswer(q Query, most int) *answer {
	width := int64(step(cmp.Or(q.To, time.Now()).Sub(q.From)))
	return &answer{q: q, most: most, to: newInterned(), width: width, groups: map[group]*sums{}, newest: map[[2]string]uint64{}, followed: map[int64]bool{}}
}

// step returns the length of a step for a range of the given length.
func step(length time.Duration) time.Duration {
	const steps = 60 // at least
	out := 10 * time.Second
	for _, d := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, (length / steps).Truncate(time.Hour)} {
		if length >= steps*d {
			out = max(out, d)
		}
	}
	return out
}

// read adds a segment's records up to the first damaged one. It decodes the next record while it adds one.
func (a *answer) read(f *os.File, of file) (err error) {
	type record struct {
		wire.Message
		*profilespb.ProfilesData
	}
	list := make(chan record)
	go func() {
		defer close(list)
		err = eachRecord(f, of, func(m wire.Message) error {
			payload, err := unpack.DecodeAll(m.Body, nil)
			if err != nil {
				return err
			}
			data, err := wire.Decode(payload)
			if err == nil {
				list <- record{m, data}
			}
			return err
		})
	}()
	c := newCopier(nil, a.to)
	for r := range list {
		c.extend(r.Dictionary)
		a.record(r.Message)
		for p := range dictionary.Profiles(r) {
			a.profile(c, r.Message, p)
		}
		if a.entries+len(a.followed) > a.most || a.to.bytes > maxDictionary {
			a.shrink()
			c = newCopier(c.from.ProfilesDictionary, a.to)
		}
	}
	return err
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
	if a.q.Service != "" || a.q.Gadget != "" {
		m.Rows = 0
	}
	a.out.Summary.merge(Summary{Start: m.Start, End: m.End, Records: 1, Rows: m.Rows})
}

// profile adds a record's profile if the query selects it.
func (a *answer) profile(c *copier, m wire.Message, p dictionary.Profile) {
	start, one := time.Unix(0, int64(p.GetTimeUnixNano())), sumOf(c.from, p)
	if !a.q.covers(start) || !a.q.Takes(one.Service, one.Gadget) {
		return
	}
	a.out.Summary.add(one)
	g := c.group(p.Resource, p.Scope, p.Profile, start.Sub(a.q.From).Nanoseconds()/a.width)
	lasts := uint64(0)
	if one.State { // if the clock was set back, the record's end is not the profile's time
		one.First, one.Last = uint64(m.End.UnixNano()), uint64(m.End.UnixNano())
		g.step, lasts, a.followed[m.Start.UnixNano()] = 0, uint64(max(0, m.End.Sub(m.Start))+minGap), true
	}
	if old := a.groups[g]; one.State && old != nil && old.end != one.Last {
		if old.end > one.Last && !a.followed[int64(old.end)] {
			return
		}
		a.entries -= len(old.values)
		delete(a.groups, g)
	}
	a.lastStep, a.longest = max(a.lastStep, g.step), max(a.longest, p.GetDurationNano())
	if a.groups[g] == nil {
		a.groups[g] = &sums{values: map[sampleKey]amount{}, start: one.First, kind: [2]string{one.Type, one.Unit}, lasts: lasts}
	}
	of := a.groups[g]
	of.start, of.end, of.dropped = min(of.start, one.First), max(of.end, one.Last), of.dropped+p.GetDroppedAttributesCount()
	before := len(of.values)
	for _, x := range p.GetSamples() {
		k := sampleKey{c.of(stack, x.GetStackIndex()), c.set(x.GetAttributeIndices()), c.of(link, x.GetLinkIndex())}
		of.values[k] = of.values[k].plus(amount{dictionary.Total(x), 1})
	}
	a.entries += len(of.values) - before
}

// forget removes the states that no longer apply. A run's next interval starts exactly at the time of a state, and replaces the
// state, even if its service has ended. If a run has ended, its states apply for another interval and minGap.
func (a *answer) forget() {
	clear(a.newest)
	for range 2 { // the second time, newest is known
		for g, s := range a.groups {
			if s.lasts > 0 && (a.followed[int64(s.end)] || s.end+s.lasts < a.newest[s.kind]) {
				a.entries -= len(s.values)
				delete(a.groups, g)
			} else if s.lasts > 0 {
				a.newest[s.kind] = max(a.newest[s.kind], s.end)
			}
		}
	}
}

// request returns the sums as OTLP.
func (a *answer) request() *collectorpb.ExportProfilesServiceRequest {
	req := &collectorpb.ExportProfilesServiceRequest{Dictionary: a.to.dict}
	order := slices.SortedFunc(maps.Keys(a.groups), func(x, y group) int {
		return cmp.Or(cmp.Compare(x.resource, y.resource), cmp.Compare(x.scope, y.scope), cmp.Compare(x.step, y.step), cmp.Compare(x.measure, y.measure))
	})
	var sp *profilespb.ScopeProfiles
	for i, g := range order {
		rp := a.to.resources[g.resource]
		another := len(rp.ScopeProfiles) == 0
		if another {
			req.ResourceProfiles = append(req.ResourceProfiles, rp)
		}
		if another || g.scope != order[i-1].scope {
			sp = proto.CloneOf(a.to.scopes[g.scope])
			rp.ScopeProfiles = append(rp.ScopeProfiles, sp)
		}
		sp.Profiles = append(sp.Profiles, a.profileOf(g))
	}
	return req
}

func (a *answer) profileOf(g group) *profilespb.Profile {
	s := a.groups[g]
	p := proto.CloneOf(a.to.measures[g.measure])
	// All states get the time of the newest one, because readers of OTLP add up only states of the same time.
	p.TimeUnixNano, p.DurationNano, p.DroppedAttributesCount, p.ProfileId = cmp.Or(a.newest[s.kind], s.start), s.end-s.start, s.dropped, make([]byte, 16)
	_, _ = rand.Read(p.ProfileId) // rand.Read never fails
	keys := slices.SortedFunc(maps.Keys(s.values), func(x, y sampleKey) int {
		return cmp.Or(cmp.Compare(x.stack, y.stack), cmp.Compare(x.set, y.set), cmp.Compare(x.link, y.link))
	})
	p.Samples = make([]*profilespb.Sample, 0, len(keys))
	for _, k := range keys {
		p.Samples = append(p.Samples, &profilespb.Sample{StackIndex: k.stack, AttributeIndices: a.to.sets[k.set], LinkIndex: k.link, Values: []int64{s.values[k].value}})
	}
	return p
}
