package profile

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Message is one encoded ExportProfilesServiceRequest.
type Message struct {
	Body     []byte
	Rows     int64
	Samples  int64
	Profiles int
	// Resource is the key of the resource if the message carries only one, HostOwner if it carries only
	// resources outside containers, and 0 otherwise.
	Resource uint64
}

// Flushed is the result of a Flush.
type Flushed struct {
	Messages []Message // empty if Limits.Emit is set, which gets them instead
	// Vanished counts rows that left nothing to write: their values add up to zero, or they were snapshots
	// that a later, empty one has replaced.
	Vanished int64
	// Fates counts all rows of the window by the fate of their stack.
	Fates Fates
	// ClippedEvents counts timestamps that were left out because one sample had too many for a message.
	ClippedEvents int64
	// Renewed says that a new dictionary has begun: the Aggregator knows no key of a row any more, and
	// will ask for each of them again.
	Renewed bool
}

// view is the part of a generation that an encoder reads: its slices as they were when the window was closed.
type view struct {
	gen        *generation
	strings    []string
	functions  []function
	mappings   []mapping
	locations  []location
	attributes []attribute
	links      []Link
	stacks     lists
	attrSets   lists
	samples    []sample
	dropped    []uint16
	resources  []resource
}

// Flush closes the window that lasted from start to end, in Unix nanoseconds, and returns it as
// messages, which then belong to the caller. Rows may be added meanwhile, and
// belong to the next window; but only one Flush may run at a time. The samples
// of one resource are written together, the resources in the order in which they were first seen. A resource with
// many samples gets messages of its own, so that a full queue can drop its messages and spare the others.
func (a *Aggregator) Flush(start, end uint64, lim Limits) Flushed {
	if lim.MaxBytes <= 0 {
		lim.MaxBytes = defaultMessage
	}
	if lim.MaxSamples <= 0 {
		lim.MaxSamples = defaultMaxSamples
	}

	a.settle() // locks mu
	w, g := a.win, a.gen
	if a.spare == nil {
		a.spare = &window{}
	}
	a.win, a.spare = a.spare, nil
	v := view{
		gen: g, strings: g.strings, functions: g.functions, mappings: g.mappings, locations: g.locations,
		attributes: g.attributes, links: g.links, stacks: g.stacks, attrSets: g.attrSets, samples: g.samples, dropped: g.dropped,
		resources: slices.Clone(g.resources),
	}
	a.epoch++
	g.windows++
	renewed := a.renew.Swap(false) || g.windows >= keepWindows || g.bytes > a.cfg.MaxBytes/2
	if renewed {
		a.gen = newGeneration(&a.cfg)
	} else {
		for _, key := range g.provisional {
			if id, ok := g.keys.get(key); ok {
				g.keys.remove(key)
				g.bytes -= costKey + costProvisional
				g.take(g.samples[id&sampleOf].resource, -(costKey + costProvisional))
			}
		}
		g.provisional = g.provisional[:0]
	}
	a.nearFull.Store(false)
	a.mu.Unlock()

	if a.cfg.HostServices > 0 {
		a.hosts.fold(&v, w, a.stride, a.cfg.HostServices, end)
	}
	out := a.enc.encode(&v, w, a.stride, start, max(end, start+1), lim)
	out.Renewed = renewed

	if renewed {
		w = &window{} // indices are those of the old generation, and so is its size
		a.enc.forget()
	} else {
		w.reset(a.stride)
	}
	a.mu.Lock()
	a.spare = w
	a.mu.Unlock()
	return out
}

// remap gives consecutive indices, from 1, to those entries of a table that a message refers to. to[i] is the index
// of entry i, 0 if it has none yet.
type remap struct {
	to   []int32
	used []uint32
}

func (r *remap) reset(n int) {
	for _, i := range r.used {
		r.to[i] = 0
	}
	r.used = r.used[:0]
	if len(r.to) < n {
		r.to = append(r.to, make([]int32, n-len(r.to))...)
	}
}

func (r *remap) add(i uint32) int32 {
	r.used = append(r.used, i)
	r.to[i] = int32(len(r.used))
	return r.to[i]
}

// encoder writes messages. It writes the wire format itself: marshalling alone of the generated structs, without
// filling them, takes as long as all that this encoder does (compare BenchmarkEncode and BenchmarkEncodeProto).
type encoder struct {
	cfg *Config
	gen *generation // whose entries the memos below belong to

	// All texts that messages can contain: the generation's strings and demangled names.
	texts    []string
	textIDs  map[string]uint32
	fromGen  []uint32 // by string of the generation: its index in texts plus 1, 0 if not known yet
	readable []uint32 // by function: the index in texts of its demangled name plus 1, 0 if not known yet
	added    int64    // bytes of demangled names that the generation does not have

	// The message that is being built.
	v                                    *view
	text, fn, mp, loc, attr, link, stk   remap
	bText, bFn, bMap, bLoc, bAttr, bLink []byte
	bStk, bRes                           []byte
	bSamples                             [][]byte // by type, of the current resource
	nSamples                             []int
	nDropped                             []int // attributes of these samples that were left out
	maxInProfile                         int
	resource                             int // the current one, -1: none
	rows, samples                        int64
	written                              uint64 // the owner of all resources written so far, 0: several (see Message.Resource)
	profilesOf                           int    // how many resources were written
	profiles                             int
	size                                 int // an upper bound of what the message takes so far
	ints                                 []int32
	tmp, tmp2                            []byte
	times                                []uint64
	values                               []int64
	start, end                           uint64
	clipped                              int64
	maxEvents                            int
	order                                []uint32 // the window's samples, see group
	counts                               []int32  // by resource: its samples in the window
}

// forget drops what was kept for a generation that is gone.
func (e *encoder) forget() {
	cfg := e.cfg
	*e = encoder{cfg: cfg}
}

const (
	overheadMessage  = 256 // zero elements, the dictionary's and the message's own lengths
	overheadProfile  = 160
	overheadResource = 64
	bigResource      = 4096 // samples from which on a resource has messages of its own
)

func (e *encoder) encode(v *view, w *window, stride int, start, end uint64, lim Limits) Flushed {
	var out Flushed
	out.Vanished = w.carried
	out.Fates = w.fates
	if len(w.touched) == 0 {
		return out
	}
	if e.gen != v.gen {
		e.forget()
		e.gen = v.gen
		e.textIDs = map[string]uint32{}
	}
	e.v, e.start, e.end, e.clipped = v, start, end, 0
	// The events of one sample take about a quarter of a message at most: a timestamp takes 8 bytes, and its value
	// mostly less.
	e.maxEvents = lim.MaxBytes / 4 / 16
	e.fromGen = grow(e.fromGen, len(v.strings))
	e.readable = grow(e.readable, len(v.functions))
	if len(e.bSamples) != len(e.cfg.Types) {
		e.bSamples = make([][]byte, len(e.cfg.Types))
		e.nSamples = make([]int, len(e.cfg.Types))
		e.nDropped = make([]int, len(e.cfg.Types))
	}

	e.begin()
	vanished := int64(0)
	carried := w.carried
	emit := func() {
		e.endResource()
		if e.samples > 0 {
			m := e.finish()
			// Rows whose snapshots were replaced count as rows of the first message.
			m.Rows += carried
			out.Vanished -= carried
			carried = 0
			if lim.Emit != nil {
				lim.Emit(m)
			} else {
				out.Messages = append(out.Messages, m)
			}
		} else {
			vanished += e.rows
		}
		e.begin()
	}
	e.group(w.touched)
	for _, id := range e.order {
		s := v.samples[id]
		acc := w.acc[int(id)*stride : (int(id)+1)*stride]
		if allZero(acc[1:]) {
			out.Vanished += acc[0]
			continue
		}
		head := int32(-1)
		if e.cfg.Shape != ShapeSum && int(id) < len(w.heads) {
			head = w.heads[id]
		}
		if int(s.resource) != e.resource {
			// Begin another message if the resource before or this one is big.
			if e.resource >= 0 && (e.counts[s.resource] >= bigResource || e.counts[e.resource] >= bigResource) {
				emit()
			}
			if e.size+e.resourceBound(s.resource) > lim.MaxBytes && e.samples > 0 {
				emit()
			}
			e.beginResource(s.resource)
		}
		bound := e.sampleBound(s, w, head)
		if e.samples > 0 && (e.size+bound > lim.MaxBytes || e.maxInProfile >= lim.MaxSamples) {
			emit()
			e.beginResource(s.resource)
			bound = e.sampleBound(s, w, head)
		}
		e.size += bound
		e.addSample(s, int(v.dropped[id]), acc, w, head)
	}
	emit()
	out.Vanished += vanished
	out.ClippedEvents = e.clipped
	e.v = nil
	return out
}

// group sets order to the touched samples, sorted by resource and then by their first row.
func (e *encoder) group(touched []uint32) {
	v := e.v
	e.counts = grow(e.counts[:0], len(v.resources))
	clear(e.counts)
	for _, id := range touched {
		e.counts[v.samples[id].resource]++
	}
	next := make([]int32, len(v.resources))
	sum := int32(0)
	for r, n := range e.counts {
		next[r] = sum
		sum += n
	}
	e.order = grow(e.order[:0], len(touched))
	for _, id := range touched {
		r := v.samples[id].resource
		e.order[next[r]] = id
		next[r]++
	}
}

func grow[T any](s []T, n int) []T {
	if len(s) < n {
		s = append(s, make([]T, n-len(s))...)
	}
	return s
}

func allZero(values []int64) bool {
	for _, v := range values {
		if v != 0 {
			return false
		}
	}
	return true
}

// begin starts a message.
func (e *encoder) begin() {
	v := e.v
	e.text.reset(len(e.texts) + len(v.strings) + len(v.functions) + 2*len(e.cfg.Types) + 4)
	e.fn.reset(len(v.functions))
	e.mp.reset(len(v.mappings))
	e.loc.reset(len(v.locations))
	e.attr.reset(len(v.attributes))
	e.link.reset(len(v.links))
	e.stk.reset(v.stacks.len())
	for _, b := range []*[]byte{&e.bText, &e.bFn, &e.bMap, &e.bLoc, &e.bAttr, &e.bLink, &e.bStk, &e.bRes} {
		*b = (*b)[:0]
	}
	e.resource, e.profilesOf, e.written = -1, 0, 0
	e.rows, e.samples, e.profiles = 0, 0, 0
	e.maxInProfile = 0
	e.size = overheadMessage
}

func (e *encoder) resourceBound(r uint32) int {
	n := overheadResource + len(e.cfg.SchemaURL)*2 + len(e.cfg.Scope.Name) + len(e.cfg.Scope.Version) +
		len(e.cfg.Types)*overheadProfile
	for _, a := range e.v.resources[r].attrs {
		n += 16 + len(a.Key) + sizeAnyValue(a.Value)
	}
	for _, t := range e.cfg.Types {
		n += len(t.Type) + len(t.Unit)
	}
	return n + len(e.cfg.PeriodType.Type) + len(e.cfg.PeriodType.Unit)
}

func (e *encoder) beginResource(r uint32) {
	e.endResource()
	e.resource = int(r)
	e.size += e.resourceBound(r)
	e.maxInProfile = 0
}

// sampleBound returns the most bytes that a sample, with what it refers to and the message does not have yet, can
// add to the message.
func (e *encoder) sampleBound(s sample, w *window, head int32) int {
	v := e.v
	n := 32
	if e.stk.to[s.stack] == 0 {
		locs := v.stacks.at(s.stack)
		n += 8 + 5*len(locs)
		for _, l := range locs {
			if e.loc.to[l] == 0 {
				n += e.locationBound(l)
			}
		}
	}
	for _, a := range v.attrSets.at(s.attrs) {
		n += 5 + e.attributeBound(a)
	}
	events := 1
	if e.cfg.Shape != ShapeSum {
		events = e.countEvents(w, head) + 1
	}
	return n + len(e.cfg.Types)*(24+events*18)
}

// countEvents returns how many timestamps a sample with this newest event has, at most maxEvents.
func (e *encoder) countEvents(w *window, head int32) int {
	n := 0
	for ; head >= 0 && n < e.maxEvents; head = w.events[head].prev {
		n++
		if e.cfg.Shape == ShapeTimestamps {
			n += int(min(max(w.events[head].value, 0), int64(e.maxEvents)))
		}
	}
	return min(n, e.maxEvents)
}

func (e *encoder) locationBound(l uint32) int {
	v := e.v
	loc := &v.locations[l]
	n := 48 + e.attributeBound(loc.frameType)
	if loc.function != 0 && e.fn.to[loc.function] == 0 {
		f := v.functions[loc.function]
		name := e.readableName(loc.function)
		n += 24 + len(e.texts[name]) + len(v.strings[f.name]) + len(v.strings[f.file]) + 18
		if e.cfg.DoubleFunctions {
			n += 24
		}
	}
	if loc.mapping != 0 && e.mp.to[loc.mapping] == 0 {
		m := &v.mappings[loc.mapping]
		n += 64 + len(m.m.File)
		for _, a := range m.attrs {
			n += 5 + e.attributeBound(a)
		}
	}
	return n
}

func (e *encoder) attributeBound(a uint32) int {
	if a == 0 || e.attr.to[a] != 0 {
		return 0
	}
	at := &e.v.attributes[a]
	return 24 + len(e.v.strings[at.key]) + sizeAnyValue(at.value)
}

// textID returns the index of s in texts, and adds it if it is not there.
func (e *encoder) textID(s string) uint32 {
	if id, ok := e.textIDs[s]; ok {
		return id
	}
	id := uint32(len(e.texts))
	e.texts = append(e.texts, s)
	e.textIDs[s] = id
	return id
}

// genText returns the index in texts of string s of the generation.
func (e *encoder) genText(s uint32) uint32 {
	if e.fromGen[s] == 0 {
		e.fromGen[s] = e.textID(e.v.strings[s]) + 1
	}
	return e.fromGen[s] - 1
}

// readableName returns the index in texts of a function's demangled name.
//
// A short symbol can stand for a very long name, and the workload chooses its symbols. So once demangled names take a
// quarter of the aggregator's memory, further symbols stay as they are.
func (e *encoder) readableName(f uint32) uint32 {
	if e.readable[f] == 0 {
		id := e.genText(e.v.functions[f].name)
		if e.cfg.Demangle != nil && e.added < e.cfg.MaxBytes/4 {
			if name := e.cfg.Demangle(e.texts[id]); name != "" {
				known := len(e.texts)
				id = e.textID(strings.ToValidUTF8(name, "\uFFFD"))
				if len(e.texts) > known {
					e.added += int64(len(name)) + costString
				}
			}
		}
		e.readable[f] = id + 1
	}
	return e.readable[f] - 1
}

// str returns the index of a text in the message's string table, and adds it if it is not there. The empty text
// is 0.
func (e *encoder) str(id uint32) uint64 {
	s := e.texts[id]
	if s == "" {
		return 0
	}
	if i := e.text.to[id]; i != 0 {
		return uint64(i)
	}
	e.bText = appendString(e.bText, 5, s)
	return uint64(e.text.add(id))
}

func (e *encoder) attribute(a uint32) int32 {
	if a == 0 {
		return 0
	}
	if i := e.attr.to[a]; i != 0 {
		return i
	}
	at := &e.v.attributes[a]
	b := appendUint(e.tmp2[:0], 1, e.str(e.genText(at.key)))
	e.tmp = appendAnyValue(e.tmp[:0], at.value)
	b = appendMessage(b, 2, e.tmp)
	e.tmp2 = b
	e.bAttr = appendMessage(e.bAttr, 6, b)
	return e.attr.add(a)
}

func (e *encoder) mapping(m uint32) uint64 {
	if m == 0 {
		return 0
	}
	if i := e.mp.to[m]; i != 0 {
		return uint64(i)
	}
	mp := &e.v.mappings[m]
	e.ints = e.ints[:0]
	for _, a := range mp.attrs {
		e.ints = append(e.ints, e.attribute(a))
	}
	b := appendUint(e.tmp[:0], 1, mp.m.Start)
	b = appendUint(b, 2, mp.m.Limit)
	b = appendUint(b, 3, mp.m.FileOffset)
	b = appendUint(b, 4, e.str(e.genText(mp.file)))
	b = appendPacked(b, 5, e.ints)
	e.tmp = b
	e.bMap = appendMessage(e.bMap, 1, b)
	return uint64(e.mp.add(m))
}

func (e *encoder) function(f uint32) uint64 {
	if i := e.fn.to[f]; i != 0 {
		return uint64(i)
	}
	fn := e.v.functions[f]
	name, symbol := e.readableName(f), e.genText(fn.name)
	b := appendUint(e.tmp[:0], 1, e.str(name))
	if symbol != name {
		b = appendUint(b, 2, e.str(symbol))
	}
	b = appendUint(b, 3, e.str(e.genText(fn.file)))
	e.tmp = b
	if e.cfg.DoubleFunctions {
		e.bFn = appendMessage(e.bFn, 3, b)
		e.fn.add(f)
	}
	e.bFn = appendMessage(e.bFn, 3, b)
	return uint64(e.fn.add(f))
}

func (e *encoder) location(l uint32) int32 {
	if i := e.loc.to[l]; i != 0 {
		return i
	}
	loc := &e.v.locations[l]
	m := e.mapping(loc.mapping)
	var fn uint64
	if loc.function != 0 {
		fn = e.function(loc.function)
	}
	at := e.attribute(loc.frameType)
	b := appendUint(e.tmp[:0], 1, m)
	b = appendUint(b, 2, loc.address)
	if fn != 0 {
		n := 1 + sizeUvarint(fn)
		if loc.line != 0 {
			n += 1 + sizeUvarint(uint64(loc.line))
		}
		b = binary.AppendUvarint(append(b, tag(3, wireBytes)), uint64(n))
		b = appendUint(b, 1, fn)
		b = appendUint(b, 2, uint64(loc.line))
	}
	if at != 0 {
		b = append(b, tag(4, wireBytes), byte(sizeUvarint(uint64(at))))
		b = binary.AppendUvarint(b, uint64(at))
	}
	e.tmp = b
	e.bLoc = appendMessage(e.bLoc, 2, b)
	return e.loc.add(l)
}

func (e *encoder) stack(s uint32) uint64 {
	if s == 0 {
		return 0
	}
	if i := e.stk.to[s]; i != 0 {
		return uint64(i)
	}
	locs := e.v.stacks.at(s)
	n := 0
	for _, l := range locs {
		n += sizeUvarint(uint64(e.location(l)))
	}
	e.bStk = append(e.bStk, tag(7, wireBytes))
	e.bStk = binary.AppendUvarint(e.bStk, uint64(sizeField(n)))
	e.bStk = append(e.bStk, tag(1, wireBytes))
	e.bStk = binary.AppendUvarint(e.bStk, uint64(n))
	for _, l := range locs {
		e.bStk = binary.AppendUvarint(e.bStk, uint64(e.loc.to[l]))
	}
	return uint64(e.stk.add(s))
}

func (e *encoder) linkIndex(l uint32) uint64 {
	if l == 0 {
		return 0
	}
	if i := e.link.to[l]; i != 0 {
		return uint64(i)
	}
	ln := &e.v.links[l]
	b := appendString(e.tmp[:0], 1, string(ln.TraceID[:]))
	b = appendString(b, 2, string(ln.SpanID[:]))
	e.tmp = b
	e.bLink = appendMessage(e.bLink, 4, b)
	return uint64(e.link.add(l))
}

// sampleFields are the field numbers of Sample, by Layout. OTLP 1.10 changed them
// (https://github.com/open-telemetry/opentelemetry-proto, CHANGELOG of 1.10.0).
var sampleFields = [...]struct{ stack, attributes, link, values, timestamps int }{
	Layout111: {1, 2, 3, 4, 5},
	Layout19:  {1, 3, 4, 2, 5},
	Layout18:  {1, 3, 4, 2, 5},
}

// profileIDField is the field number of Profile.profile_id, by Layout; that of dropped_attributes_count is one more.
// OTLP 1.9 removed comment_strindices, which was 7, and renumbered what came after it. A reader of 1.8 would take an
// ID in field 7 for indices of strings and refuse the request.
var profileIDField = [...]int{Layout111: 7, Layout19: 7, Layout18: 8}

func (e *encoder) addSample(s sample, dropped int, acc []int64, w *window, head int32) {
	stack, link := e.stack(s.stack), e.linkIndex(s.link)
	set := e.v.attrSets.at(s.attrs)
	e.ints = e.ints[:0]
	for _, a := range set {
		e.ints = append(e.ints, e.attribute(a))
	}
	e.rows += acc[0]
	f := sampleFields[e.cfg.Layout]
	for t := range e.cfg.Types {
		if acc[1+t] == 0 {
			continue
		}
		e.collect(t, acc[1+t], w, head)
		if len(e.values) == 0 && len(e.times) == 0 {
			continue
		}
		b := appendUint(e.tmp[:0], f.stack, stack)
		if f.values < f.attributes {
			b = appendPacked(b, f.values, e.values)
		}
		b = appendPacked(b, f.attributes, e.ints)
		b = appendUint(b, f.link, link)
		if f.values > f.attributes {
			b = appendPacked(b, f.values, e.values)
		}
		if len(e.times) > 0 {
			b = binary.AppendUvarint(append(b, tag(f.timestamps, wireBytes)), uint64(8*len(e.times)))
			for _, v := range e.times {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
		}
		e.tmp = b
		e.bSamples[t] = appendMessage(e.bSamples[t], 2, b)
		e.nSamples[t]++
		e.nDropped[t] += dropped
		e.maxInProfile = max(e.maxInProfile, e.nSamples[t])
		e.samples++
	}
}

// collect sets values and times to those of a sample of type t, in the configured Shape. sum is the total of the
// window, head the newest event of the sample.
func (e *encoder) collect(t int, sum int64, w *window, head int32) {
	e.values, e.times = e.values[:0], e.times[:0]
	if e.cfg.Shape == ShapeSum || head < 0 {
		e.values = append(e.values, sum)
		return
	}
	if e.cfg.Shape == ShapeSingle {
		e.values = append(e.values, sum)
		e.times = append(e.times, e.clamp(w.events[head].time))
		return
	}
	types := len(e.cfg.Types)
	counts := e.cfg.Types[t].Unit == "count"
	for i := 0; head >= 0; i++ {
		ev := &w.events[head]
		head = ev.prev
		if i%types != t || ev.value == 0 {
			continue
		}
		n := int64(1)
		if e.cfg.Shape == ShapeTimestamps && counts {
			n = max(ev.value, 0)
		}
		if room := int64(e.maxEvents - len(e.times)); n > room {
			e.clipped += n - room
			n = room
		}
		for range n {
			e.times = append(e.times, e.clamp(ev.time))
			if e.cfg.Shape == ShapeEvents {
				e.values = append(e.values, ev.value)
			}
		}
	}
	slices.Reverse(e.times)
	slices.Reverse(e.values)
}

// clamp moves a timestamp into the time of its profile, as the specification demands.
func (e *encoder) clamp(t uint64) uint64 {
	return min(max(t, e.start), e.end-1)
}

// endResource writes the current resource's profiles, if it has any.
func (e *encoder) endResource() {
	if e.resource < 0 {
		return
	}
	r := &e.v.resources[e.resource]
	e.resource = -1

	scope := appendString(nil, 1, e.cfg.Scope.Name)
	if e.cfg.Scope.Version != "" {
		scope = appendString(scope, 2, e.cfg.Scope.Version)
	}
	sp := appendMessage(nil, 1, scope)
	wrote := false
	for t := range e.cfg.Types {
		if e.nSamples[t] == 0 {
			continue
		}
		wrote = true
		e.profiles++
		head, tail := e.profileEnds(t)
		n := len(head) + len(e.bSamples[t]) + len(tail)
		sp = append(sp, tag(2, wireBytes))
		sp = binary.AppendUvarint(sp, uint64(n))
		sp = append(sp, head...)
		sp = append(sp, e.bSamples[t]...)
		sp = append(sp, tail...)
		e.bSamples[t] = e.bSamples[t][:0]
		e.nSamples[t], e.nDropped[t] = 0, 0
	}
	if !wrote {
		return
	}
	owner := r.key
	if r.host {
		owner = HostOwner
	}
	if e.profilesOf == 0 {
		e.written = owner
	} else if e.written != owner {
		e.written = 0
	}
	e.profilesOf++
	if e.cfg.SchemaURL != "" {
		sp = appendString(sp, 3, e.cfg.SchemaURL)
	}
	var res []byte
	for _, a := range r.attrs {
		kv := appendString(e.tmp[:0], 1, a.Key)
		e.tmp2 = appendAnyValue(e.tmp2[:0], a.Value)
		kv = appendMessage(kv, 2, e.tmp2)
		e.tmp = kv
		res = appendMessage(res, 1, kv)
	}
	res = appendUint(res, 2, uint64(r.dropped))
	schema := 0
	if e.cfg.SchemaURL != "" {
		schema = sizeField(len(e.cfg.SchemaURL))
	}
	e.bRes = append(e.bRes, tag(1, wireBytes))
	e.bRes = binary.AppendUvarint(e.bRes, uint64(sizeField(len(res))+sizeField(len(sp))+schema))
	e.bRes = appendMessage(e.bRes, 1, res)
	e.bRes = appendMessage(e.bRes, 2, sp)
	if e.cfg.SchemaURL != "" {
		e.bRes = appendString(e.bRes, 3, e.cfg.SchemaURL)
	}
}

// profileEnds returns the fields of a profile that are written before and after its samples.
func (e *encoder) profileEnds(t int) (head, tail []byte) {
	head = appendMessage(nil, 1, e.valueType(e.cfg.Types[t]))
	if e.cfg.State && e.cfg.Shape == ShapeSum {
		tail = appendFixed64(nil, 3, e.end)
	} else {
		tail = appendFixed64(nil, 3, e.start)
		tail = appendUint(tail, 4, e.end-e.start)
	}
	pt, period := e.cfg.PeriodType, e.cfg.Period
	if pt.Type == "" {
		pt, period = e.cfg.Types[t], 1
	}
	tail = appendMessage(tail, 5, e.valueType(pt))
	if e.cfg.NameLabel == "" {
		tail = appendUint(tail, 6, uint64(max(period, 1)))
	}
	id := e.cfg.NewID()
	tail = appendString(tail, profileIDField[e.cfg.Layout], string(id[:]))
	return head, appendUint(tail, profileIDField[e.cfg.Layout]+1, uint64(e.nDropped[t]))
}

func (e *encoder) valueType(t ValueType) []byte {
	b := appendUint(nil, 1, e.str(e.textID(t.Type)))
	return appendUint(b, 2, e.str(e.textID(t.Unit)))
}

// finish returns the message. The caller has called endResource.
func (e *encoder) finish() Message {
	dict := len(e.bText) + len(e.bFn) + len(e.bMap) + len(e.bLoc) + len(e.bAttr) + len(e.bLink) + len(e.bStk) + 7*2
	b := make([]byte, 0, len(e.bRes)+dict+2*(1+binary.MaxVarintLen32))
	b = append(b, e.bRes...)
	b = append(b, tag(2, wireBytes))
	b = binary.AppendUvarint(b, uint64(dict))
	for _, t := range []struct {
		field int
		body  []byte
	}{{1, e.bMap}, {2, e.bLoc}, {3, e.bFn}, {4, e.bLink}, {5, e.bText}, {6, e.bAttr}, {7, e.bStk}} {
		// Element 0 of every table is the zero value of its type.
		b = append(b, tag(t.field, wireBytes), 0)
		b = append(b, t.body...)
	}
	m := Message{Body: b, Rows: e.rows, Samples: e.samples, Profiles: e.profiles}
	m.Resource = e.written
	return m
}
