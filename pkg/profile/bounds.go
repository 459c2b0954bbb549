package profile

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

// sampleBound returns the maximum number of bytes that a sample adds to the message, including entries that are not in the
// message yet.
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

// countEvents returns the number of timestamps of a sample whose newest event is head, at most maxEvents.
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
		n += 24 + len(e.texts[name]) + len(v.strings[f.name]) + len(v.strings[f.file]) + 24
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
