package profile

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// textID returns the index of s in texts, and adds s if necessary.
func (e *encoder) textID(s string) uint32 {
	if id, ok := e.textIDs[s]; ok {
		return id
	}
	id := uint32(len(e.texts))
	e.texts = append(e.texts, s)
	e.textIDs[s] = id
	return id
}

// genText returns the index in texts for the generation's string s.
func (e *encoder) genText(s uint32) uint32 {
	if e.fromGen[s] == 0 {
		e.fromGen[s] = e.textID(e.v.strings[s]) + 1
	}
	return e.fromGen[s] - 1
}

// readableName returns the index in texts of a function's demangled name.
//
// A workload chooses its symbols, and a short symbol can have a very long name. So once demangled names take a quarter of the
// Aggregator's memory, no further symbols are demangled.
func (e *encoder) readableName(f uint32) uint32 {
	if e.readable[f] == 0 {
		id := e.genText(e.v.functions[f].name)
		if e.cfg.Demangle != nil && e.added < e.cfg.MaxBytes/4 {
			if name := e.cfg.Demangle(e.texts[id]); name != "" {
				known := len(e.texts)
				clean := printable.Clean(name) // some languages can escape any character in their symbols
				if clean != name {
					e.replaced++
				}
				id = e.textID(clean)
				if len(e.texts) > known {
					e.added += int64(len(name)) + costString
				}
			}
		}
		e.readable[f] = id + 1
	}
	return e.readable[f] - 1
}

// str returns the index of a text in the message's string table, and adds the text if necessary. The empty text has index 0.
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
	// memory_start, memory_limit and file_offset stay 0: see Frame.Address.
	b := appendUint(e.tmp[:0], 4, e.str(e.genText(mp.file)))
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
	b = appendUint(b, 4, uint64(fn.start))
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
		n := 1 + protowire.SizeVarint(fn)
		if loc.line != 0 {
			n += 1 + protowire.SizeVarint(uint64(loc.line))
		}
		b = binary.AppendUvarint(append(b, tag(3, protowire.BytesType)), uint64(n))
		b = appendUint(b, 1, fn)
		b = appendUint(b, 2, uint64(loc.line))
	}
	if at != 0 {
		b = append(b, tag(4, protowire.BytesType), byte(protowire.SizeVarint(uint64(at))))
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
		n += protowire.SizeVarint(uint64(e.location(l)))
	}
	e.bStk = append(e.bStk, tag(7, protowire.BytesType))
	e.bStk = binary.AppendUvarint(e.bStk, uint64(sizeField(n)))
	e.bStk = append(e.bStk, tag(1, protowire.BytesType))
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
