package profile

import "math"

// When a row is read, some names in its stack can still be unknown. Such a sample has its own entry in the window, because two
// stacks that look equal now can later differ. When the window ends, the stack is resolved, and the values move to the
// resulting sample.

// pendingSample is a sample with an incomplete stack.
type pendingSample struct {
	key        uint64
	sample     uint32
	later      Later
	head, tail []uint32 // locations before and after the frames of later

	resolved uint32 // the resulting sample
	all      bool   // later has no further names
	fate     Fate   // of the stack; Whole keeps the fate in key
}

// costPending is a pending sample's memory, including its entries in the two windows, but without the parts of its stack.
const costPending = 200

func (u *pendingSample) bytes() int64 {
	return costPending + 4*int64(len(u.head)+len(u.tail)) + int64(u.later.Size())
}

// addPending adds a sample with a pending stack and returns its number.
func (g *generation) addPending(s sample, dropped int, key uint64, later Later, head, tail []uint32) uint32 {
	var id uint32
	if n := len(g.free); n > 0 {
		id, g.free = g.free[n-1], g.free[:n-1]
		g.samples[id], g.dropped[id] = s, uint16(min(dropped, math.MaxUint16))
	} else {
		id = uint32(len(g.samples))
		g.samples = append(g.samples, s)
		g.dropped = append(g.dropped, uint16(min(dropped, math.MaxUint16)))
		g.bytes += g.sampleCost
	}
	locs := append(append(make([]uint32, 0, len(head)+len(tail)), head...), tail...)
	u := pendingSample{key: key, sample: id, later: later, head: locs[:len(head)], tail: locs[len(head):]}
	g.pending = append(g.pending, u)
	g.pendingBytes += u.bytes()
	g.take(s.resource, u.bytes())
	return id
}

// resolvePending resolves the stacks of all pending samples, and moves their values to the resulting samples. It returns with
// mu held, so no row is added before the caller has closed the window. While it requests frames, it releases mu, so rows do not
// wait, except for those of a new snapshot.
func (a *Aggregator) resolvePending() {
	const atOnce = 32
	var frames []Frame
	var batch []pendingSample
	var ends []int
	for done := 0; ; done += len(batch) {
		a.mu.Lock()
		g := a.gen // also valid without mu, because only Flush replaces it or removes entries, and only one Flush runs
		batch = append(batch[:0], g.pending[done:min(done+atOnce, len(g.pending))]...)
		if len(batch) == 0 {
			break
		}
		a.mu.Unlock()
		frames, ends = frames[:0], ends[:0]
		for i := range batch {
			frames, batch[i].fate, batch[i].all = batch[i].later.Frames(frames, true)
			ends = append(ends, len(frames))
		}
		a.mu.Lock()
		start := 0
		for i := range batch {
			a.internResolved(&batch[i], frames[start:ends[i]])
			start = ends[i]
		}
		copy(g.pending[done:], batch)
		a.mu.Unlock()
	}
	a.mergeResolved()
}

// Ask requests the frames of all pending samples before the window ends. So lookups begin early. It reports whether any stack
// is still incomplete. Do not call it during a Flush.
func (a *Aggregator) Ask() (pending bool) {
	const atOnce = 32
	var frames []Frame
	var batch []pendingSample
	for done := 0; ; done += len(batch) {
		a.mu.Lock()
		batch = append(batch[:0], a.gen.pending[done:min(done+atOnce, len(a.gen.pending))]...)
		a.mu.Unlock()
		if len(batch) == 0 {
			return pending
		}
		for i := range batch {
			if !batch[i].all {
				frames, _, batch[i].all = batch[i].later.Frames(frames[:0], false)
				pending = pending || !batch[i].all
			}
		}
		a.mu.Lock()
		copy(a.gen.pending[done:], batch)
		a.mu.Unlock()
	}
}

// internResolved interns the stack of a pending sample and sets u.resolved. The caller holds mu.
func (a *Aggregator) internResolved(u *pendingSample, frames []Frame) {
	g := a.gen
	before := g.bytes
	a.locs = append(a.locs[:0], u.head...)
	a.locs = a.frames(a.locs, frames)
	a.locs = append(a.locs, u.tail...)
	s := g.samples[u.sample]
	var n int64
	s.stack, n = g.stacks.id(&g.hash, a.locs)
	g.bytes += n
	u.resolved = g.sample(s, int(g.dropped[u.sample]))
	g.take(s.resource, g.bytes-before)
}

// mergeResolved moves the values of the window's pending samples to the resolved ones. The caller holds mu.
func (a *Aggregator) mergeResolved() {
	g, w := a.gen, a.win
	if len(g.pending) == 0 {
		return
	}
	to := make(map[uint32]uint32, len(g.pending))
	for i := range g.pending {
		u := &g.pending[i]
		to[u.sample] = u.resolved
		g.take(g.samples[u.sample].resource, -u.bytes())
		// If the stack is final, the row's key now belongs to the resolved sample. Otherwise, the key is forgotten, and the
		// next row is requested in full again.
		if id, ok := g.keys[u.key]; ok && id&sampleOf == u.sample {
			delete(g.keys, u.key)
			if u.fate != Whole && Fate(id>>fateShift) == Whole {
				if int(u.sample+1)*a.stride <= len(w.acc) {
					rows := w.acc[int(u.sample)*a.stride]
					w.fates[Whole] -= rows
					w.fates[u.fate] += rows
				}
				id = u.sample | uint32(u.fate)<<fateShift
			}
			if u.all {
				g.keys[u.key] = u.resolved | id&^sampleOf
			} else {
				g.bytes -= costKey
				g.take(g.samples[u.sample].resource, -costKey)
			}
		}
		g.free = append(g.free, u.sample)
		*u = pendingSample{}
	}
	g.pending, g.pendingBytes = g.pending[:0], 0

	touched := w.touched
	w.touched = w.touched[:0]
	var moved []uint32
	for _, id := range touched {
		if _, ok := to[id]; ok {
			moved = append(moved, id)
		} else {
			w.touched = append(w.touched, id)
		}
	}
	for _, id := range moved {
		w.merge(to[id], id, a.stride, a.cfg.Shape, a.cfg.Aggregation == AggregateLast)
	}
}
