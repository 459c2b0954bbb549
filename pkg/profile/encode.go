package profile

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message is one encoded ExportProfilesServiceRequest.
type Message struct {
	Body     []byte
	Rows     int64
	Samples  int64
	Profiles int
	// Resource is the resource's key if the message contains only one resource. It is HostOwner if the message only contains
	// resources outside containers, and otherwise 0.
	Resource uint64
}

// Flushed is the result of a Flush.
type Flushed struct {
	Messages []Message // empty if Limits.Emit is set, which receives them
	// Vanished counts rows that caused no output. Their values add up to zero, or a later, empty snapshot replaced them.
	Vanished int64
	// Fates counts all rows of the window by the fate of their stack.
	Fates Fates
	// ClippedEvents counts dropped timestamps. They are dropped if one sample has too many for a message.
	ClippedEvents int64
	// Replaced counts texts in which U+FFFD replaces invalid UTF-8 or control characters. A text counts once for each new stack
	// or resource.
	Replaced int64
	// Renewed reports that a new dictionary has begun. The Aggregator has forgotten all keys, and requests each key again.
	Renewed bool
}

// view is the part of a generation that an encoder reads. Its slices show the state at the end of the window.
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

// Flush closes the window from start to end, in Unix nanoseconds, and returns it as messages, which then belong to the caller.
// Rows that are added in the meantime belong to the next window. Calls of Flush must not overlap.
//
// Flush writes resources in the order in which they were first seen, each with all its samples. A resource with many samples
// gets its own messages. So a full queue can drop them and keep the others.
func (a *Aggregator) Flush(start, end uint64, lim Limits) Flushed {
	if lim.MaxBytes <= 0 {
		lim.MaxBytes = defaultMessage
	}
	if lim.MaxSamples <= 0 {
		lim.MaxSamples = defaultMaxSamples
	}

	a.snapshot.Lock()
	a.resolvePending() // resolvePending locks mu itself
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
	replaced := g.replaced
	g.replaced = 0
	renewed := a.renew.Swap(false) || g.windows >= keepWindows || g.bytes > a.cfg.MaxBytes/2
	if renewed {
		a.gen = newGeneration(&a.cfg)
	}
	a.nearFull.Store(false)
	a.mu.Unlock()
	a.snapshot.Unlock()

	if a.cfg.HostServices > 0 {
		a.hosts.fold(&v, w, &a.cfg, a.stride, end)
	}
	out := a.enc.encode(&v, w, a.stride, start, max(end, start+1), lim)
	out.Renewed = renewed
	out.Replaced, a.enc.replaced = replaced+a.enc.replaced, 0

	if renewed {
		w = &window{} // the old window's size and indices belong to the old generation
		a.enc.forget()
	} else {
		w.reset(a.stride)
	}
	a.mu.Lock()
	a.spare = w
	a.mu.Unlock()
	return out
}

// remap assigns consecutive indices from 1 to the table entries that a message refers to. to[i] is the index of entry i, or 0.
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

// encoder writes messages in wire format. Marshalling generated structs took about four times as long, even without filling them.
// This was measured with 2,000 samples of 28 frames each.
type encoder struct {
	cfg *Config
	gen *generation // the generation of the cached texts below

	// These are all texts that messages can contain: the generation's strings and demangled names.
	texts    []string
	textIDs  map[string]uint32
	fromGen  []uint32 // by string of the generation: its index in texts plus 1, or 0 if unknown
	readable []uint32 // by function: the index in texts of its demangled name plus 1, or 0 if unknown
	added    int64    // the bytes of demangled names that are not in the generation
	replaced int64    // texts of this window's demangled names, as in Flushed

	// These fields belong to the current message.
	v                                    *view
	text, fn, mp, loc, attr, link, stk   remap
	bText, bFn, bMap, bLoc, bAttr, bLink []byte
	bStk, bRes                           []byte
	bSamples                             [][]byte // of the current resource, by type
	nSamples                             []int
	nDropped                             []int // dropped attributes of these samples
	maxInProfile                         int
	resource                             int // the current resource, or -1
	rows, samples                        int64
	soleOwner                            uint64 // the owner of all resources written so far, or 0 if there are several (see Message.Resource)
	resourcesWritten                     int    // the number of written resources
	profiles                             int
	size                                 int // an upper bound of the message's current size
	ints                                 []int32
	tmp, tmp2                            []byte
	times                                []uint64
	values                               []int64
	start, end                           uint64
	clipped                              int64
	maxEvents                            int
	order                                []uint32 // the window's samples: see group
	counts                               []int32  // by resource: the number of its samples in the window
}

// forget drops an ended generation's data.
func (e *encoder) forget() { *e = encoder{cfg: e.cfg} }

const (
	overheadMessage  = 256 // the zero entries, and the lengths of dictionary and message
	overheadProfile  = 160
	overheadResource = 64
	bigResource      = 4096 // the number of samples from which a resource gets its own messages
)

func (e *encoder) encode(v *view, w *window, stride int, start, end uint64, lim Limits) Flushed {
	out := Flushed{Vanished: w.carried, Fates: w.fates}
	if len(w.touched) == 0 {
		return out
	}
	if e.gen != v.gen {
		e.forget()
		e.gen = v.gen
		e.textIDs = map[string]uint32{}
	}
	e.v, e.start, e.end, e.clipped = v, start, end, 0
	// The events of one sample take at most about a quarter of a message. A timestamp takes 8 bytes, and a value usually takes
	// less.
	e.maxEvents = lim.MaxBytes / 4 / 16
	e.fromGen = grow(e.fromGen, len(v.strings))
	e.readable = grow(e.readable, len(v.functions))
	if len(e.bSamples) != len(e.cfg.Types) {
		e.bSamples = make([][]byte, len(e.cfg.Types))
		e.nSamples = make([]int, len(e.cfg.Types))
		e.nDropped = make([]int, len(e.cfg.Types))
	}

	e.begin()
	carried := w.carried
	emit := func() {
		e.endResource()
		if e.samples > 0 {
			m := e.finish()
			// Rows that a later snapshot replaced count in the first message.
			m.Rows += carried
			out.Vanished -= carried
			carried = 0
			if lim.Emit != nil {
				lim.Emit(m)
			} else {
				out.Messages = append(out.Messages, m)
			}
		} else {
			out.Vanished += e.rows
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
			// Begin another message if the previous resource or this resource is big.
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
	out.ClippedEvents = e.clipped
	e.v = nil
	return out
}

// group sets order to the touched samples, sorted by resource and then by their first row.
func (e *encoder) group(touched []uint32) {
	v := e.v
	e.counts = grow(e.counts[:0], len(v.resources))
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
	return !slices.ContainsFunc(values, func(v int64) bool { return v != 0 })
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
	e.resource, e.resourcesWritten, e.soleOwner = -1, 0, 0
	e.rows, e.samples, e.profiles = 0, 0, 0
	e.maxInProfile = 0
	e.size = overheadMessage
}

// finish returns the message. The caller has called endResource.
func (e *encoder) finish() Message {
	dict := len(e.bText) + len(e.bFn) + len(e.bMap) + len(e.bLoc) + len(e.bAttr) + len(e.bLink) + len(e.bStk) + 7*2
	b := make([]byte, 0, len(e.bRes)+dict+2*(1+binary.MaxVarintLen32))
	b = append(b, e.bRes...)
	b = append(b, tag(2, protowire.BytesType))
	b = binary.AppendUvarint(b, uint64(dict))
	for _, t := range []struct {
		field int
		body  []byte
	}{{1, e.bMap}, {2, e.bLoc}, {3, e.bFn}, {4, e.bLink}, {5, e.bText}, {6, e.bAttr}, {7, e.bStk}} {
		// Element 0 of each table is the zero value of the table's type.
		b = append(b, tag(t.field, protowire.BytesType), 0)
		b = append(b, t.body...)
	}
	return Message{Body: b, Rows: e.rows, Samples: e.samples, Profiles: e.profiles, Resource: e.soleOwner}
}
