package procmap

import (
	"cmp"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// Bounds of the history.
const (
	maxLives  = 8192 // that have ended
	maxRanges = 4096 // of one life
	maxChain  = 8    // lives that are searched one after the other
	// maxAlive bounds the lives that have not ended. When it is reached, all of them are forgotten, and read again from /proc
	// when they are needed.
	maxAlive = 32768
)

// life is the executable mappings of a process from one execve (or fork) to the next. It is kept for a while after its end,
// because rows come later than their events.
type life struct {
	pid   uint32
	start uint64 // nanoseconds since boot
	ended bool
	end   uint64 // if it has ended
	// whole reports that nothing is missing from ranges: all events since execve were seen, or /proc/PID/maps was read.
	whole bool
	// exe is the inode of the executable at the time ranges were read from /proc, 0 if they were not.
	exe uint64
	// parent is set for a fork of a process with incomplete mappings. It is that process's life, and is searched if this one has
	// nothing.
	parent  *life
	depth   int      // how many parents are above it
	ranges  []mapped // by address, without overlaps
	shared  bool     // ranges are another life's, too: to be copied before they change
	readAt  uint64   // when ranges were read, 0 if they were not, in nanoseconds since boot
	forgot  bool     // it is no longer in the history
	counted uint64   // see Resolver.held
	perf    *file    // its perf map, nil before the first request
}

// mapped is a part of an address space that may be executed.
type mapped struct {
	start, end, offset uint64
	file               *file
}

// find returns the mapping at an address, nil if there is none.
func (l *life) find(addr uint64) *mapped {
	for depth := 0; l != nil && depth < maxChain; depth++ {
		i, found := slices.BinarySearchFunc(l.ranges, addr, func(m mapped, addr uint64) int { return cmp.Compare(m.start, addr) })
		if !found {
			i--
		}
		if i >= 0 && addr < l.ranges[i].end {
			return &l.ranges[i]
		}
		l = l.parent
	}
	return nil
}

// meets reports whether at least one range of l has the same file at the same place in other. Two readings of one program must
// have one. A life without ranges matches every other.
func (l *life) meets(other *life) bool {
	return len(l.ranges) == 0 || slices.ContainsFunc(l.ranges, func(m mapped) bool {
		o := other.find(m.start)
		return o != nil && o.file.key == m.file.key && o.offset+m.start-o.start == m.offset
	})
}

// known reports whether nothing has to be read from /proc for this life: all its mappings are known, by itself or by a
// parent.
func (l *life) known() bool {
	for depth := 0; l != nil && depth < maxChain; depth++ {
		if l.whole {
			return true
		}
		l = l.parent
	}
	return false
}

// add adds a range, which replaces the old mapping there.
func (l *life) add(m mapped) {
	if m.start >= m.end || len(l.ranges) >= maxRanges {
		return
	}
	if l.shared {
		l.ranges, l.shared = slices.Clone(l.ranges), false
	}
	// l.ranges[from] is the first that ends after m begins. l.ranges[to] is the first that begins at m's end or later. m replaces
	// the ranges between them.
	from, _ := slices.BinarySearchFunc(l.ranges, m.start, func(o mapped, addr uint64) int { return cmp.Compare(o.end, addr+1) })
	to, _ := slices.BinarySearchFunc(l.ranges, m.end, func(o mapped, addr uint64) int { return cmp.Compare(o.start, addr) })
	var parts [3]mapped
	n := 0
	if from < to && l.ranges[from].start < m.start {
		before := l.ranges[from]
		before.end = m.start
		parts[n] = before
		n++
	}
	parts[n] = m
	n++
	if from < to && l.ranges[to-1].end > m.end {
		after := l.ranges[to-1]
		after.offset += m.end - after.start
		after.start = m.end
		parts[n] = after
		n++
	}
	l.ranges = slices.Replace(l.ranges, from, max(from, to), parts[:n]...)
}

// history knows the lives of processes. It is not safe for concurrent use.
type history struct {
	byPID map[uint32][]*life // by start
	ended []*life            // in the order of their ends
	alive int
	// until is the time up to which all events have been taken in. Before gap some may be missing. Both are in
	// nanoseconds since boot.
	until, gap uint64
	// grown estimates the bytes that have been added since Resolver.shrink last counted.
	grown int
}

func newHistory() history { return history{byPID: map[uint32][]*life{}} }

// at returns the life that a process had at a time, nil if it is not known. 0 is now.
func (h *history) at(pid uint32, time uint64) *life {
	lives := h.byPID[pid]
	for i := len(lives) - 1; i >= 0; i-- {
		l := lives[i]
		switch {
		case time != 0 && l.start > time:
			continue
		case l.ended && l.end < h.gap && (time == 0 || time > l.end):
			return nil // the event that began another one may be among those that are missing
		}
		return l
	}
	return nil
}

// current returns the life that a process has now.
func (h *history) current(pid uint32) *life {
	if l := h.at(pid, 0); l != nil && !l.ended {
		return l
	}
	return nil
}

// begin starts a new life of a process and ends the one before. The new life does not start before that end: a start
// that comes from no event (0, or read from /proc) can be too early.
func (h *history) begin(pid uint32, start uint64) *life {
	h.end(pid, start)
	if n := len(h.byPID[pid]); n > 0 {
		start = max(start, h.byPID[pid][n-1].end)
	}
	if h.alive >= maxAlive {
		h.forgetAlive()
	}
	l := &life{pid: pid, start: start}
	h.byPID[pid] = append(h.byPID[pid], l)
	h.alive++
	h.grown += lifeBytes
	return l
}

// end marks the current life as ended.
func (h *history) end(pid uint32, time uint64) {
	l := h.current(pid)
	if l == nil {
		return
	}
	l.ended, l.end = true, max(l.start, time)
	h.alive--
	h.ended = append(h.ended, l)
	if len(h.ended) > maxLives {
		n := maxLives / 4
		for _, old := range h.ended[:n] {
			h.remove(old)
		}
		h.ended = slices.Clone(h.ended[n:])
	}
}

func (h *history) remove(l *life) {
	l.forgot = true
	lives := slices.DeleteFunc(h.byPID[l.pid], func(o *life) bool { return o == l })
	if len(lives) == 0 {
		delete(h.byPID, l.pid)
		return
	}
	h.byPID[l.pid] = lives
}

// forgetAlive forgets all lives that have not ended, for when the event of an end may be missing. It sets gap,
// because a life that has ended may have been followed by one that is not known.
func (h *history) forgetAlive() {
	h.gap = procfs.SinceBoot()
	for pid, lives := range h.byPID {
		lives = slices.DeleteFunc(lives, func(l *life) bool {
			l.forgot = l.forgot || !l.ended
			return !l.ended
		})
		if len(lives) == 0 {
			delete(h.byPID, pid)
		} else {
			h.byPID[pid] = lives
		}
	}
	h.alive = 0
}

// fork records that parent has forked pid. time is in nanoseconds since boot, as in exec.

func (h *history) fork(pid, parent uint32, time uint64) {
	p := h.at(parent, 0) // also one that has ended: the exit is that of the first thread, and others may go on
	if p == nil {
		p = h.begin(parent, 0) // it is older than the history: it is read when it is asked for
	}
	l := h.begin(pid, time)
	l.whole, l.ranges, l.shared = p.whole, p.ranges, len(p.ranges) > 0
	p.shared = l.shared
	if !p.whole && p.depth+1 < maxChain { // otherwise it must be read itself, and the chain ends here
		l.parent, l.depth = p, p.depth+1
	}
}

// exec takes in that a process has become another program.
func (h *history) exec(pid uint32, time uint64) {
	if l := h.current(pid); l != nil && l.readAt >= time { // it was read after the execve: what was read is the next life's
		l.ranges, l.whole, l.shared, l.readAt, l.exe = nil, false, false, 0, 0
	}
	h.begin(pid, time).whole = true
}

// mmap takes in a new executable mapping of a process.
func (h *history) mmap(pid uint32, m mapped) {
	l := h.at(pid, 0)
	if l == nil {
		l = h.begin(pid, 0)
	}
	before := cap(l.ranges)
	if l.shared {
		before = 0
	}
	l.add(m)
	h.grown += rangeBytes * max(cap(l.ranges)-before, 0)
}
