package profile

import "math"

// When a row is read, names of its stack may still be on their way. Such a sample has an entry of its own in the window,
// because two stacks that look alike now can turn out to differ. When the window ends the stack is settled, and the values
// go to the sample that it has become.

// unsettled is a sample whose stack is not known in full yet.
type unsettled struct {
	key        uint64
	sample     uint32
	later      Later
	head, tail []uint32 // locations before and after those of later

	settled uint32 // the sample that it has become
	all     bool   // nothing more will be known
	fate    Fate   // of the stack, if that is not the one of key
}

// costUnsettled is what an unsettled sample takes in memory beside the parts of its stack, with its entries in the two windows.
const costUnsettled = 200

func (u *unsettled) bytes() int64 {
	return costUnsettled + 4*int64(len(u.head)+len(u.tail)) + int64(u.later.Size())
}

// unsettle makes a sample whose stack is known later, and returns it.
func (g *generation) unsettle(s sample, dropped int, key uint64, later Later, head, tail []uint32) uint32 {
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
	u := unsettled{key: key, sample: id, later: later, head: locs[:len(head)], tail: locs[len(head):]}
	g.unsettled = append(g.unsettled, u)
	g.unsettledBytes += u.bytes()
	g.take(s.resource, u.bytes())
	return id
}

// settle finds out the stacks of all unsettled samples and moves their values to the samples that they have become.
// It returns with mu held, so that no row is added before the caller has closed the window. It lets go of mu while it
// asks for frames, so that rows do not wait for that.
func (a *Aggregator) settle() {
	const atOnce = 32
	var frames []Frame
	var batch []unsettled
	var ends []int
	for done := 0; ; done += len(batch) {
		a.mu.Lock()
		g := a.gen // the same without mu: only Flush, of which one runs at a time, replaces it and takes entries out
		batch = append(batch[:0], g.unsettled[done:min(done+atOnce, len(g.unsettled))]...)
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
			a.become(&batch[i], frames[start:ends[i]])
			start = ends[i]
		}
		copy(g.unsettled[done:], batch)
		a.mu.Unlock()
	}
	a.moveSettled()
}

// Ask asks all unsettled samples for their frames before the window ends, so that the look-ups which those need are
// begun. It tells whether any stack is still not known in full. It must not be called while a Flush runs.
func (a *Aggregator) Ask() (pending bool) {
	const atOnce = 32
	var frames []Frame
	var batch []unsettled
	for done := 0; ; done += len(batch) {
		a.mu.Lock()
		batch = append(batch[:0], a.gen.unsettled[done:min(done+atOnce, len(a.gen.unsettled))]...)
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
		copy(a.gen.unsettled[done:], batch)
		a.mu.Unlock()
	}
}

// become interns the stack of an unsettled sample and sets u.settled. Under mu.
func (a *Aggregator) become(u *unsettled, frames []Frame) {
	g := a.gen
	before := g.bytes
	a.locs = append(a.locs[:0], u.head...)
	a.locs = a.frames(a.locs, frames)
	a.locs = append(a.locs, u.tail...)
	s := g.samples[u.sample]
	var n int64
	s.stack, n = g.stacks.id(&g.hash, a.locs)
	g.bytes += n
	u.settled = g.sample(s, int(g.dropped[u.sample]))
	g.take(s.resource, g.bytes-before)
}

// moveSettled gives the values of the window's unsettled samples to what they have become. Under mu.
func (a *Aggregator) moveSettled() {
	g, w := a.gen, a.win
	if len(g.unsettled) == 0 {
		return
	}
	to := make(map[uint32]uint32, len(g.unsettled))
	for i := range g.unsettled {
		u := &g.unsettled[i]
		to[u.sample] = u.settled
		g.take(g.samples[u.sample].resource, -u.bytes())
		// If nothing more will be known, the key of the row stands for the settled sample from now on. Else it is
		// forgotten, so that the next row is asked for in full again.
		if id, ok := g.keys.get(u.key); ok && id&sampleOf == u.sample {
			g.keys.remove(u.key)
			if u.fate != Whole && Fate(id>>fateShift) == Whole {
				if int(u.sample+1)*a.stride <= len(w.acc) {
					rows := w.acc[int(u.sample)*a.stride]
					w.fates[Whole] -= rows
					w.fates[u.fate] += rows
				}
				id = u.sample | uint32(u.fate)<<fateShift
			}
			if u.all {
				g.keys.add(u.key, u.settled|id&^sampleOf)
			} else {
				g.bytes -= costKey
				g.take(g.samples[u.sample].resource, -costKey)
			}
		}
		g.free = append(g.free, u.sample)
		*u = unsettled{}
	}
	g.unsettled, g.unsettledBytes = g.unsettled[:0], 0

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
		a.moveValues(w, id, to[id])
	}
}

// moveValues adds the values of one sample to those of another.
func (a *Aggregator) moveValues(w *window, from, to uint32) {
	for need := (int(to) + 1) * a.stride; len(w.acc) < need; {
		w.acc = append(w.acc, 0)
	}
	src, dst := w.acc[int(from)*a.stride:int(from+1)*a.stride], w.acc[int(to)*a.stride:int(to+1)*a.stride]
	if dst[0] == 0 {
		w.touched = append(w.touched, to)
	}
	dst[0] += src[0]
	for i := range a.cfg.Types {
		if a.cfg.Aggregation == AggregateLast {
			dst[1+i] = src[1+i]
		} else {
			dst[1+i] = addSaturated(dst[1+i], src[1+i])
		}
	}
	clear(src)
	if int(from) >= len(w.heads) || w.heads[from] < 0 {
		return
	}
	for len(w.heads) <= int(to) {
		w.heads = append(w.heads, -1)
	}
	if a.cfg.Shape == ShapeSingle && w.heads[to] >= 0 {
		e := &w.events[w.heads[to]]
		e.time = max(e.time, w.events[w.heads[from]].time)
	} else {
		last := w.heads[from]
		for w.events[last].prev >= 0 {
			last = w.events[last].prev
		}
		w.events[last].prev = w.heads[to]
		w.heads[to] = w.heads[from]
	}
	w.heads[from] = -1
}
