package history

import (
	"cmp"
	"maps"
	"slices"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// These constants limit an answer.
const (
	maxEntries    = 400_000  // samples, counted per step
	maxDictionary = 64 << 20 // bytes, without the memory for the structure of OTLP
)

// shrink keeps the answer within its limits. It removes the callers of rare stacks within each step, so the timeline stays. The
// steps become longer only if one sample per service and step is still too much.
func (a *answer) shrink() {
	a.forget()
	clear(a.followed)
	for len(a.groups) > a.most/4 && a.lastStep > 0 {
		a.coarsen()
	}
	for share := a.most / 2; share > 0 && (a.entries > a.most*7/8 || a.to.bytes > maxDictionary/2); share /= 4 {
		a.cut(share)
		if a.to.bytes > maxDictionary/2 {
			a.compact()
		}
	}
}

// coarsen doubles the steps' length.
func (a *answer) coarsen() {
	a.width *= 2
	a.lastStep /= 2
	a.regroup(func(g group) group { g.step /= 2; return g }, func(k sampleKey) sampleKey { return k })
}

// regroup adds up sums whose keys have become equal.
func (a *answer) regroup(group2 func(group) group, sample func(sampleKey) sampleKey) {
	old := a.groups
	a.groups, a.entries = make(map[group]*sums, len(old)), 0
	for g, s := range old {
		to := a.groups[group2(g)]
		if to == nil {
			to = &sums{values: make(map[sampleKey]amount, len(s.values)), start: s.start, kind: s.kind, lasts: s.lasts}
			a.groups[group2(g)] = to
		}
		to.start, to.end, to.dropped = min(to.start, s.start), max(to.end, s.end), to.dropped+s.dropped
		before := len(to.values)
		for k, v := range s.values {
			to.values[sample(k)] = to.values[sample(k)].plus(v)
		}
		a.entries += len(to.values) - before
	}
}

// cut keeps the callers of most samples, approximately. Another most/4 samples keep only their innermost frame.
func (a *answer) cut(most int) {
	t := a.to
	f := addMessage(t, function, &t.dict.FunctionTable, &profilespb.Function{NameStrindex: t.text(RareStacks)})
	a.rare = addMessage(t, location, &t.dict.LocationTable, &profilespb.Location{Lines: []*profilespb.Line{{FunctionIndex: f}}})
	root := sampleKey{stack: t.stack([]int32{a.rare})}
	a.cutTo(most, func(k sampleKey) bool { return !a.isRare(k) }, func(k sampleKey) sampleKey {
		if k.stack == 0 {
			return root
		}
		return sampleKey{stack: t.stack([]int32{t.dict.StackTable[k.stack].LocationIndices[0], a.rare})}
	})
	a.cutTo(most/4, func(k sampleKey) bool { return k != root && a.isRare(k) }, func(sampleKey) sampleKey { return root })
}

// cutTo keeps approximately most of the chosen samples, and moves the others to another key. Half of the kept samples are the
// largest stacks of the whole answer. The other half are the largest stacks of each step, so short events keep their stacks.
func (a *answer) cutTo(most int, chosen func(sampleKey) bool, other func(sampleKey) sampleKey) {
	type stackOf struct { // in all steps
		measure int32
		sampleKey
	}
	type entry struct {
		in *sums
		k  sampleKey
		v  int64
	}
	all, lines := map[stackOf]amount{}, map[group][]entry{}
	for g, s := range a.groups {
		for k, v := range s.values {
			if chosen(k) {
				l, st := group{measure: g.measure, step: g.step}, stackOf{g.measure, k}
				lines[l] = append(lines[l], entry{s, k, v.value})
				all[st] = all[st].plus(amount{v.value, 1})
			}
		}
	}
	used, keep := map[int32]int{}, map[stackOf]bool{} // each measure keeps the same number of samples
	for l := range lines {
		used[l.measure] = 0
	}
	for _, st := range slices.SortedFunc(maps.Keys(all), func(x, y stackOf) int {
		return cmp.Or(cmp.Compare(all[y].value, all[x].value), cmp.Compare(x.stack, y.stack))
	}) {
		used[st.measure] += int(all[st].samples)
		keep[st] = used[st.measure] <= most/2/len(used)
	}
	for l, list := range lines {
		list = slices.DeleteFunc(list, func(e entry) bool { return keep[stackOf{l.measure, e.k}] })
		slices.SortFunc(list, func(x, y entry) int { return cmp.Or(cmp.Compare(y.v, x.v), cmp.Compare(x.k.stack, y.k.stack)) })
		for _, e := range list[min(len(list), most/2/len(lines)):] {
			before, to := len(e.in.values), other(e.k)
			e.in.values[to] = e.in.values[to].plus(e.in.values[e.k])
			delete(e.in.values, e.k)
			a.entries += len(e.in.values) - before
		}
	}
}

// isRare reports whether a sample has lost its callers.
func (a *answer) isRare(k sampleKey) bool {
	stack := a.to.dict.StackTable[k.stack].LocationIndices
	return a.rare != 0 && len(stack) > 0 && stack[len(stack)-1] == a.rare
}

// countRare returns the number of samples without their callers.
func (a *answer) countRare() (n int64) {
	for _, s := range a.groups {
		for k, v := range s.values {
			if a.isRare(k) {
				n += v.samples
			}
		}
	}
	return n
}

// compact removes the dictionary's unused entries.
func (a *answer) compact() {
	from := a.to
	c := newCopier(from.dict, newInterned())
	a.regroup(func(g group) group {
		return c.group(from.resources[g.resource], from.scopes[g.scope], from.measures[g.measure], g.step)
	}, func(k sampleKey) sampleKey {
		return sampleKey{c.of(stack, k.stack), c.set(from.sets[k.set]), c.of(link, k.link)}
	})
	a.rare, a.to = c.of(location, a.rare), c.to
}
