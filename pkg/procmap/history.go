package procmap

import (
	"slices"
	"sort"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// These constants limit the history.
const (
	maxLives  = 8192 // maximum number of ended lives
	maxRanges = 4096 // maximum number of ranges of one life
	maxChain  = 8    // lives that are searched one after the other
	// maxAlive limits the number of lives that have not ended. When it is reached, all these lives are forgotten. They are read
	// again from /proc when necessary.
	maxAlive = 32768
)

// life holds a process's executable mappings from one execve (or fork) to the next. It is kept for some time after its end,
// because rows arrive later than their events.
type life struct {
	pid   uint32
	start uint64 // in nanoseconds since boot
	ended bool
	end   uint64 // in nanoseconds since boot, if ended
	// whole reports that ranges are complete: all events since execve were seen, or /proc/PID/maps was read.
	whole bool
	// exe is the inode of the executable when ranges were read from /proc, or 0.
	exe uint64
	// parent is the parent process's life if this process was forked and its mappings are incomplete, or nil. It is searched if
	// this life has no match.
	parent  *life
	depth   int      // the number of ancestors
	ranges  []mapped // sorted by address, without overlaps
	shared  bool     // another life shares ranges, so they are copied before a change
	readAt  uint64   // when ranges were read, in nanoseconds since boot, or 0
	forgot  bool     // no longer in the history
	counted uint64   // see Resolver.held
	perf    *file    // its perf map, nil before the first request
}

// mapped is an executable part of an address space.
type mapped struct {
	start, end, offset uint64
	file               *file
}

// find returns the mapping at an address, or nil.
func (l *life) find(addr uint64) *mapped {
	for depth := 0; l != nil && depth < maxChain; depth++ {
		i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].start > addr }) - 1
		if i >= 0 && addr < l.ranges[i].end {
			return &l.ranges[i]
		}
		l = l.parent
	}
	return nil
}

// meets reports whether l and other map at least one file at the same place. Two readings of the same program must share such a
// range. A life without ranges meets every other life.
func (l *life) meets(other *life) bool {
	return len(l.ranges) == 0 || slices.ContainsFunc(l.ranges, func(m mapped) bool {
		o := other.find(m.start)
		return o != nil && o.file.key == m.file.key && o.offset+m.start-o.start == m.offset
	})
}

// known reports whether all mappings of this life are known, from itself or an ancestor. In that case, /proc need not be read.
func (l *life) known() bool {
	for depth := 0; l != nil && depth < maxChain; depth++ {
		if l.whole {
			return true
		}
		l = l.parent
	}
	return false
}

// add adds a range, which replaces older ranges at the same addresses.
func (l *life) add(m mapped) {
	if m.start >= m.end || len(l.ranges) >= maxRanges {
		return
	}
	if l.shared {
		l.ranges, l.shared = slices.Clone(l.ranges), false
	}
	// l.ranges[from] is the first range that ends after m begins. l.ranges[to] is the first range that begins at m's end or
	// later. m replaces the ranges between them.
	from := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].end > m.start })
	to := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].start >= m.end })
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

// history holds the lives of processes. It is not safe for concurrent use.
type history struct {
	byPID map[uint32][]*life // sorted by start
	ended []*life            // sorted by end
	alive int
	// All events up to until have been added. Events before gap are possibly missing. Both are in nanoseconds since boot.
	until, gap uint64
	// grown estimates the bytes that were added since Resolver.shrink last counted.
	grown int
}

func newHistory() history { return history{byPID: map[uint32][]*life{}} }

// at returns a process's life at a time, or nil if it is unknown. Time 0 means now.
func (h *history) at(pid uint32, time uint64) *life {
	lives := h.byPID[pid]
	for i := len(lives) - 1; i >= 0; i-- {
		l := lives[i]
		switch {
		case time != 0 && l.start > time:
			continue
		case l.ended && l.end < h.gap && (time == 0 || time > l.end):
			return nil // the event that began the next life may be missing
		}
		return l
	}
	return nil
}

// current returns the current life of a process, or nil.
func (h *history) current(pid uint32) *life {
	if l := h.at(pid, 0); l != nil && !l.ended {
		return l
	}
	return nil
}

// begin starts a new life of a process and ends the previous one. The new life does not start before the previous one's end,
// because a start of 0 or from /proc can be too early.
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

// end ends the current life.
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

// forgetAlive forgets all lives that have not ended. Callers use it when events are possibly missing. It sets gap, because
// ended lives can have unknown successors.
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
	p := h.at(parent, 0) // may have ended: other threads can continue after the first one's exit
	if p == nil {
		p = h.begin(parent, 0) // older than the history; read when it is requested
	}
	l := h.begin(pid, time)
	l.whole, l.ranges, l.shared = p.whole, p.ranges, len(p.ranges) > 0
	p.shared = l.shared
	if !p.whole && p.depth+1 < maxChain { // otherwise the chain ends here, and the process must be read
		l.parent, l.depth = p, p.depth+1
	}
}

// exec records that a process has become another program.
func (h *history) exec(pid uint32, time uint64) {
	if l := h.current(pid); l != nil && l.readAt >= time { // read after the execve, so the ranges belong to the next life
		l.ranges, l.whole, l.shared, l.readAt, l.exe = nil, false, false, 0, 0
	}
	h.begin(pid, time).whole = true
}

// mmap records a new executable mapping of a process.
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
