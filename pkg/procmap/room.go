package procmap

import (
	"maps"
	"slices"
)

// makeRoom makes room for one more process. The caller holds r.mu.
func (r *Resolver) makeRoom() {
	if len(r.processes) >= maxProcesses {
		r.forgetHalf()
	}
}

// forgetHalf forgets the least recently used half of the processes.
func (r *Resolver) forgetHalf() {
	keys := slices.SortedFunc(maps.Keys(r.processes), func(a, b Process) int { return r.processes[a].used.Compare(r.processes[b].used) })
	for _, p := range keys[:(len(keys)+1)/2] {
		delete(r.processes, p)
	}
}

// sweep calls shrink. It runs periodically, because bound does not count all added memory.
func (r *Resolver) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shrink()
}

// bound calls shrink if much has been added since its last call. The caller holds r.mu.
func (r *Resolver) bound() {
	if r.history.grown > maxHeld/2 {
		r.shrink()
	}
}

// shrink forgets the history and all files if more than maxHeld is held. If the requested processes alone still take too much,
// it halves their number repeatedly. The caller holds r.mu.
func (r *Resolver) shrink() {
	r.history.grown = 0
	if r.held() <= maxHeld {
		return
	}
	for _, lives := range r.history.byPID {
		for _, l := range lives {
			l.forgot = true
		}
	}
	until := r.history.until
	r.history = newHistory()
	r.history.until = until
	r.files, r.fileBytes = map[fileKey]*file{}, 0
	for len(r.processes) > 0 && r.held() > maxHeld {
		r.forgetHalf()
	}
}

// These are estimated sizes in bytes.
const (
	lifeBytes  = 250
	rangeBytes = 40
	entryBytes = 150
)

// held returns a high estimate of the bytes of all lives and files. The field counted prevents that one is counted twice. The
// caller holds r.mu.
func (r *Resolver) held() int {
	r.count++
	n := 0
	file := func(f *file) {
		if f != nil && f.counted != r.count {
			f.counted = r.count
			n += f.size()
		}
	}
	for _, f := range r.files {
		file(f)
	}
	lives := func(l *life) {
		for ; l != nil && l.counted != r.count; l = l.parent {
			l.counted = r.count
			n += lifeBytes + rangeBytes*cap(l.ranges)
			for i := range l.ranges {
				file(l.ranges[i].file)
			}
			file(l.perf)
		}
	}
	for _, ls := range r.history.byPID {
		for _, l := range ls {
			lives(l)
		}
	}
	for _, e := range r.processes {
		n += entryBytes
		lives(e.life)
	}
	return n
}
