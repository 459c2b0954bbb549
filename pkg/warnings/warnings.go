// Package warnings reports each kind of error once in a run. Errors repeat often, and one kind must not hide another.
package warnings

import (
	"regexp"
	"sync"
)

// mostKinds limits the kinds, because a workload can influence the texts of errors. Further kinds are only counted.
const mostKinds = 16

// Teller reports the first error of each kind, and counts the others. Its methods are safe for concurrent use.
type Teller struct {
	// Warn writes a line for users.
	Warn func(err error)

	mu     sync.Mutex
	kinds  map[string]bool
	untold uint64
}

// varies matches the differences between errors of one kind: numbers, and names in quotes.
var varies = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|0x[0-9a-fA-F]+|[0-9]+`)

// Tell logs an error if it is the first of its kind. Errors that differ only in numbers and quoted texts are of one kind.
func (t *Teller) Tell(err error) {
	if t.first(err) {
		t.Warn(err)
	}
}

func (t *Teller) first(err error) bool {
	const longest = 1024
	text := err.Error()
	kind := varies.ReplaceAllString(text[:min(len(text), longest)], "#")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds[kind] || len(t.kinds) >= mostKinds {
		t.untold++
		return false
	}
	if t.kinds == nil {
		t.kinds = map[string]bool{}
	}
	t.kinds[kind] = true
	return true
}

// Suppressed is the number of unreported errors.
func (t *Teller) Suppressed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.untold
}
