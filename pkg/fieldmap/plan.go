package fieldmap

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// Plan reads the rows of one data source. Its methods are safe for concurrent use, except SampleOf.
type Plan struct {
	desc Descriptor

	// Every row needs these fields.
	seed            maphash.Seed
	k1, k2, k3      uint64 // secrets: mix uses k1 and k2; k3 is the h of its first call
	containerID     reader
	identityFields  []reader // these fields identify the resource if containerID is empty
	resourceFields  []reader // further fields that distinguish resources
	stackKeyFields  []reader // fields that distinguish stacks
	sampleKeyFields []reader // further fields that distinguish samples of a resource
	values          []valueReader
	timestamp       reader
	bootOffset      uint64

	// Only new rows need these fields.
	stacks          stackFields
	stackReader     *Plan               // the Plan that reads the stacks: this one, or Options.First
	rawKernel       bool                // whether kernel addresses are raw
	frames          []profile.Frame     // the copy that SampleOf makes if it changes frames; reused
	attributes      []profile.Attribute // the result of SampleOf; reused
	identity        [numIdentities]reader
	sampleAttrs     []attribute
	resourceAttrs   []attribute
	placement       map[string]place
	movedToSample   bool // the settings move a derived attribute of the resource, such as the pod's name, to the sample
	fixed           map[string]profile.Value
	fixedKeys       []string
	traceID, spanID reader
	exporter        config.Exporter
	kernelSymbols   *stack.KernelSymbols // nil without kernel stacks
	hosts           hostReader
	podLabels       []string
	host            Host
	maxResource     int
	maxSample       int
	names           map[string]string // the exported name by key, nil if they are equal

	shortRows, cutAttributes atomic.Uint64
	absences                 [stack.NumAbsences]atomic.Uint64
	unnamed                  unnamed
	settings                 frameSettings
	ends                     []int // ends of the fields' frames in the last Sample
	fates                    []stack.Outcome
}

// attribute is a field that becomes an attribute.
type attribute struct {
	key  string
	read reader
}

// valueReader reads one of a row's values.
type valueReader struct {
	read  reader
	scale float64 // factor for a floating-point field; otherwise unused
}

// Stats counts the parts of rows that a Plan has left out.
type Stats struct {
	// ShortRows counts reads of rows that are shorter than the data source declares.
	ShortRows uint64
	// CutResourceAttributes counts resource attributes over the limit.
	CutResourceAttributes uint64
	// Unnamed counts kernel stacks without text, and with functions that could not be named. UnnamedReason is the last reason.
	Unnamed       uint64
	UnnamedReason error
	// Absences counts distinct samples without frames by reason, separately for kernel and user stacks.
	Absences [stack.NumAbsences]uint64
	// UserFrames counts the frames of distinct user stacks by state.
	UserFrames [names.NumStates]uint64
}

// Descriptor returns the description of the profiles.
func (p *Plan) Descriptor() Descriptor {
	d := p.desc
	d.Types = slices.Clone(d.Types)
	d.Counted = len(p.values) == 0
	return d
}

// Kinds reports whether rows have kernel stacks, user stacks, or both.
func (p *Plan) Kinds() (kernel, user bool) {
	for i := range p.stacks {
		kernel, user = kernel || p.stacks[i].kernel != nil, user || p.stacks[i].user != nil
	}
	return kernel, user
}

// Stats returns the counters.
func (p *Plan) Stats() Stats {
	st := Stats{ShortRows: p.shortRows.Load(), CutResourceAttributes: p.cutAttributes.Load()}
	st.Unnamed = p.unnamed.n.Load()
	if reason := p.unnamed.reason.Load(); reason != nil {
		st.UnnamedReason = *reason
	}
	for i := range st.Absences {
		st.Absences[i] = p.absences[i].Load()
	}
	for i := range st.UserFrames {
		st.UserFrames[i] = p.settings.counts[i].Load()
	}
	return st
}

// StackKey returns a hash of the row's stack for KeysOf. It does not allocate. Hashing the text of a stack takes most of the
// time, so Plans of several exporters share the result.
func (p *Plan) StackKey(d datasource.Data) (key uint64) {
	defer func() {
		if recover() != nil {
			p.shortRows.Add(1)
			key = p.mixFields(p.k3, p.stackKeyFields, d, true)
		}
	}()
	return p.mixFields(p.k3, p.stackKeyFields, d, false)
}

// KeysOf returns a hash of the row's resource, and a hash of its resource and sample. Rows with equal keys have the same
// resource and the same sample within one Plan. stackKey is the row's StackKey from this Plan or its Options.First. It does not
// allocate.
func (p *Plan) KeysOf(d datasource.Data, stackKey uint64) (resource, row uint64) {
	defer func() {
		if recover() != nil {
			p.shortRows.Add(1)
			resource, row = p.keys(d, stackKey, true)
		}
	}()
	return p.keys(d, stackKey, false)
}

// keys implements KeysOf. If a row is too short, keys panics. With guard, it reads the missing parts as empty.
func (p *Plan) keys(d datasource.Data, stackKey uint64, guard bool) (resource, row uint64) {
	resource = p.k3
	if b := p.containerID.bytes(d, guard || p.containerID.acc == nil); len(b) > 0 {
		resource = p.mix(resource, maphash.Bytes(p.seed, b))
	} else {
		resource = p.mixFields(resource, p.identityFields, d, guard)
	}
	resource = p.mixFields(p.processKey(resource, d), p.resourceFields, d, guard)
	return resource, p.mixFields(p.mix(resource, stackKey), p.sampleKeyFields, d, guard)
}

func (p *Plan) mixFields(h uint64, fields []reader, d datasource.Data, guard bool) uint64 {
	for i := range fields {
		h = p.mix(h, p.hash(&fields[i], fields[i].bytes(d, guard)))
	}
	return h
}

// SameKeys reports whether p and first, its Options.First, give every row the same keys.
func (p *Plan) SameKeys(first *Plan) bool {
	same := func(a, b []reader) bool { return slices.EqualFunc(a, b, reader.same) }
	return p.k1 == first.k1 && p.hosts.services == first.hosts.services && p.hosts.contexts == first.hosts.contexts &&
		(p.hosts.contexts == nil || p.exporter.ProcessContext == first.exporter.ProcessContext) && p.containerID.same(first.containerID) &&
		same(p.identityFields, first.identityFields) && same(p.resourceFields, first.resourceFields) && same(p.sampleKeyFields, first.sampleKeyFields)
}

// hash returns a number for the bytes b of a field: k3 if b is empty, the value of a numeric field, and otherwise a hash.
func (p *Plan) hash(r *reader, b []byte) uint64 {
	switch {
	case len(b) == 0:
		return p.k3
	case len(b) == r.width:
		v := r.load(b)
		if r.errno && v <= math.MaxInt32 {
			return min(v, 1) // 0 if no stack was requested
		}
		return v
	}
	return hashBytes(p.seed, b)
}

// mix adds v to h by a multiplication, and folds the halves of the 128-bit product. A workload can choose v. Because of the
// secrets it cannot choose the key.
func (p *Plan) mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^p.k1, v^p.k2)
	return hi ^ lo
}

// Values appends the row's values to dst, one for each type of the Descriptor, and returns it. Without a value field, the value
// is 1. A value out of range becomes the nearest in range. A missing value or a NaN becomes 0. It does not allocate if dst has
// room.
func (p *Plan) Values(dst []int64, d datasource.Data) (out []int64) {
	if len(p.values) == 0 {
		return append(dst, 1)
	}
	defer func() {
		if recover() != nil {
			p.shortRows.Add(1)
			out = p.appendValues(dst, d, true)
		}
	}()
	return p.appendValues(dst, d, false)
}

func (p *Plan) appendValues(dst []int64, d datasource.Data, guard bool) []int64 {
	for i := range p.values {
		v := &p.values[i]
		dst = append(dst, v.value(v.read.bytes(d, guard)))
	}
	return dst
}

func (v *valueReader) value(b []byte) int64 {
	if v.scale == 0 {
		return v.read.signed(b)
	}
	f := math.RoundToEven(v.read.float(b) * v.scale)
	switch {
	case f != f:
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

// wallTime separates times since 1970 from times since boot, in nanoseconds. No machine has been up for 31 years, and no clock
// is set to a date before September 2001.
const wallTime = 1e18

// Timestamp returns the row's time in nanoseconds since 1970, or 0 if it has none. IG's formatter usually converts the
// program's time since boot in the row. Otherwise Timestamp converts it. It does not allocate.
func (p *Plan) Timestamp(d datasource.Data) uint64 {
	b := p.timestamp.guarded(d)
	if len(b) != 8 {
		return 0
	}
	t := p.timestamp.load(b)
	switch {
	case t == 0 || p.timestamp.kind == api.Kind_Int64 && t > math.MaxInt64:
		return 0
	case t < wallTime:
		return t + p.bootOffset
	}
	return t
}

// KernelChanges returns how often code in kernel stacks has been removed. After that, names of known stacks can change. It is
// safe for concurrent use.
func (p *Plan) KernelChanges() int {
	if p.kernelSymbols == nil {
		return 0
	}
	return p.kernelSymbols.Changes()
}

// Resource returns the attributes of the row's container, or of its service on the host, the most important first.
func (p *Plan) Resource(d datasource.Data) profile.Resource {
	l := p.derive(d, true)
	if l.cut > 0 {
		p.cutAttributes.Add(uint64(l.cut))
	}
	r := profile.Resource{Attributes: l.resource, Dropped: l.cut}
	r.Host = p.hosts.services != nil && p.onHost(d)
	if l.service != "" {
		r.Group, r.Rest = max(maphash.String(p.seed, l.service), 1), p.derive(d, false).resource
	}
	return r
}

// Stack is the stack of one row. Several Plans of a data source create Samples from it. The zero value is an unread stack.
type Stack struct {
	by     *Plan           // the Plan that read it
	frames []profile.Frame // frames of all fields
	ends   []int           // where each field ends in frames
	fates  []stack.Outcome // one outcome per field
	users  []userFrames    // the parts of frames that are user stacks
	// pending reports that more can become known about the frames.
	pending bool
	// unnamed, if not nil, can name the last unnamedFrames frames of a field later.
	unnamed                     Unnamed
	unnamedField, unnamedFrames int
}

// Forget prepares s for another row.
func (s *Stack) Forget() { s.by = nil }

// SampleOf returns everything in the row except its values and resource. The Plans of a data source share st: the first of them
// reads the stack and names its functions. Nothing in the Sample aliases the row. Its frames are valid until st is read again,
// and its attributes until the next call. SampleOf can read stack maps. Call it once per unknown key, in the goroutine that
// delivers rows.
func (p *Plan) SampleOf(d datasource.Data, st *Stack) profile.Sample {
	if st.by != p.stackReader {
		p.stackReader.stacks.read(st, d)
		st.by = p.stackReader
	}
	var s profile.Sample
	s.Stack = st.frames
	ends, fates := st.ends, st.fates
	if len(st.users) > 0 {
		ends, fates = p.users(&s, st)
	}
	s.Stack, s.Fate = p.stacks.root(s.Stack, ends, fates, p.exporter.MarkIncomplete)
	if s.Fate == profile.NoStack {
		for _, why := range p.stacks.absences(d) {
			p.absences[why].Add(1)
		}
	}
	if l, ok := s.Later.(*laterFrames); ok {
		if s.Fate == profile.Truncated && s.LaterTo == len(s.Stack)-1 && fates[len(fates)-1] == stack.Truncated {
			// Only later names show whether the stack was cut off or had left code before (see laterFrames.cut).
			s.Stack, s.Fate, l.cut = s.Stack[:s.LaterTo], profile.Whole, true
		}
		if s.Fate == profile.Whole && s.LaterTo == len(s.Stack) {
			l.checkRoot, l.mark = true, p.exporter.MarkIncomplete
		}
	}
	switch {
	case s.Later != nil:
	case st.pending:
		s.Later = profile.AskAgain
	case st.unnamed != nil:
		l := &lateNames{Unnamed: st.unnamed}
		s.LaterTo = ends[st.unnamedField]
		s.Later, s.LaterFrom = l, s.LaterTo-st.unnamedFrames
		l.checkRoot = s.Fate == profile.Whole && s.LaterTo == len(s.Stack) && p.stacks[st.unnamedField].user != nil
		l.mark = p.exporter.MarkIncomplete
	}
	s.Attributes = p.attributes[:0]
	for i := range p.sampleAttrs {
		a := &p.sampleAttrs[i]
		if v, ok := a.read.value(d); ok {
			s.Attributes = append(s.Attributes, profile.Attribute{Key: a.key, Value: v})
		}
	}
	if p.movedToSample {
		for _, a := range p.derive(d, true).sample {
			switch {
			case hasKey(s.Attributes, a.Key):
			case len(s.Attributes) >= p.maxSample:
				s.Dropped++
			default:
				s.Attributes = append(s.Attributes, a)
			}
		}
	}
	p.attributes = s.Attributes
	// A span without its trace, or a trace without a span, links to nothing.
	var link profile.Link
	if readID(link.TraceID[:], &p.traceID, d) && readID(link.SpanID[:], &p.spanID, d) {
		s.Link = link
	}
	return s
}

// readID fills dst from a field with raw bytes, hexadecimal text or, for a span, a number. It returns false if there is no ID
// or it is all zeros.
func readID(dst []byte, r *reader, d datasource.Data) bool {
	if r.acc == nil {
		return false
	}
	b := r.guarded(d)
	if r.width == 8 && len(b) == 8 { // the number is in native byte order, but an ID is big-endian
		b = binary.BigEndian.AppendUint64(nil, r.load(b))
	}
	if len(b) != len(dst) {
		b = bytes.TrimRight(b, "\x00") // a C string ends in NULs
	}
	switch len(b) {
	case len(dst):
		copy(dst, b)
	case hex.EncodedLen(len(dst)):
		if _, err := hex.Decode(dst, b); err != nil {
			return false
		}
	default:
		return false
	}
	return slices.ContainsFunc(dst, func(c byte) bool { return c != 0 })
}

// StackIDs returns the IDs of the row's kernel and user stack in the stack maps, for a stack.Janitor. A missing stack has a
// negative ID. It does not allocate.
func (p *Plan) StackIDs(d datasource.Data) (kernel, user int32) {
	kernel, user = -1, -1
	for i := range p.stacks {
		f := &p.stacks[i]
		id, ok := f.stackID(d)
		switch {
		case !ok, f.byID: // these maps evict entries themselves
		case f.kernel != nil:
			kernel = id
		case f.user != nil:
			user = id
		}
	}
	return kernel, user
}
