package profile

import (
	"crypto/rand"
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

func (e *encoder) beginResource(r uint32) {
	e.endResource()
	e.resource = int(r)
	e.size += e.resourceBound(r)
	e.maxInProfile = 0
}

func (e *encoder) addSample(s sample, dropped int, acc []int64, w *window, head int32) {
	stack, link := e.stack(s.stack), e.linkIndex(s.link)
	set := e.v.attrSets.at(s.attrs)
	e.ints = e.ints[:0]
	for _, a := range set {
		e.ints = append(e.ints, e.attribute(a))
	}
	e.rows += acc[0]
	for t := range e.cfg.Types {
		if acc[1+t] == 0 {
			continue
		}
		e.collect(t, acc[1+t], w, head)
		if len(e.values) == 0 && len(e.times) == 0 {
			continue
		}
		b := appendUint(e.tmp[:0], 1, stack)
		b = appendPacked(b, 2, e.ints)
		b = appendUint(b, 3, link)
		b = appendPacked(b, 4, e.values)
		if len(e.times) > 0 {
			b = binary.AppendUvarint(append(b, tag(5, protowire.BytesType)), uint64(8*len(e.times)))
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

// collect sets values and times to a sample's values and times for type t, in the configured Shape. sum is the window's total,
// and head is the sample's newest event.
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

// clamp moves a timestamp into the time of its profile, as the specification requires.
func (e *encoder) clamp(t uint64) uint64 {
	return min(max(t, e.start), e.end-1)
}

// endResource writes the profiles of the current resource, if any.
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
		sp = append(sp, tag(2, protowire.BytesType))
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
	if e.resourcesWritten == 0 {
		e.soleOwner = owner
	} else if e.soleOwner != owner {
		e.soleOwner = 0
	}
	e.resourcesWritten++
	sp = appendString(sp, 3, e.cfg.SchemaURL)
	var res []byte
	for _, a := range r.attrs {
		kv := appendString(e.tmp[:0], 1, a.Key)
		e.tmp2 = appendAnyValue(e.tmp2[:0], a.Value)
		kv = appendMessage(kv, 2, e.tmp2)
		e.tmp = kv
		res = appendMessage(res, 1, kv)
	}
	res = appendUint(res, 2, uint64(r.dropped))
	e.bRes = append(e.bRes, tag(1, protowire.BytesType))
	e.bRes = binary.AppendUvarint(e.bRes, uint64(sizeField(len(res))+sizeField(len(sp))+sizeField(len(e.cfg.SchemaURL))))
	e.bRes = appendMessage(e.bRes, 1, res)
	e.bRes = appendMessage(e.bRes, 2, sp)
	e.bRes = appendString(e.bRes, 3, e.cfg.SchemaURL)
}

// profileEnds returns the fields of a profile before and after its samples.
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
	var id [16]byte
	rand.Read(id[:]) // never fails
	tail = appendString(tail, 7, string(id[:]))
	return head, appendUint(tail, 8, uint64(e.nDropped[t]))
}

func (e *encoder) valueType(t ValueType) []byte {
	b := appendUint(nil, 1, e.str(e.textID(t.Type)))
	return appendUint(b, 2, e.str(e.textID(t.Unit)))
}
