package warnings

import (
	"math"
	"sync"
	"time"
)

// Rate limits the lines of each kind. It is safe for concurrent use. The caller names the kinds and limits their number.
type Rate struct {
	Every time.Duration // the minimum time between lines of one kind; 0: only one line

	mu    sync.Mutex
	kinds map[string]*rateKind
}

type rateKind struct {
	last time.Time
	left int // lines that were left out since then
}

// Due reports whether a line of this kind can be written now. It also returns the number of lines that were left out since the
// last one.
func (r *Rate) Due(kind string) (left int, ok bool) { return r.due(kind, math.MaxInt) }

// due is like Due, but allows no line of a new kind if there are already most kinds.
func (r *Rate) due(kind string, most int) (left int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	k := r.kinds[kind]
	switch {
	case k == nil && len(r.kinds) >= most:
		return 0, false
	case k == nil:
		if r.kinds == nil {
			r.kinds = map[string]*rateKind{}
		}
		r.kinds[kind] = &rateKind{last: now}
		return 0, true
	case r.Every == 0 || now.Sub(k.last) < r.Every:
		k.left++
		return 0, false
	}
	left, k.left, k.last = k.left, 0, now
	return left, true
}

// Missed takes back a line that Due allowed but that could not be written. left is the result of Due. Those lines count as left
// out again.
func (r *Rate) Missed(kind string, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[kind].left += left + 1
}

// Had reports whether Due has allowed a line of this kind.
func (r *Rate) Had(kind string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[kind] != nil
}
