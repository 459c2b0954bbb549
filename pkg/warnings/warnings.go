// Package warnings tells users of errors, each kind once in a run: what goes wrong goes wrong often, and one kind does not hide another.
package warnings

import (
	"regexp"
	"sync"
)

// mostKinds is how many kinds there are at most: what errors say can be up to a workload. Further ones are counted only.
const mostKinds = 16

// Teller tells the first error of each kind, and counts the others. Its methods are safe for concurrent use.
type Teller struct {
	// Warn writes a line for users.
	Warn func(err error)

	mu     sync.Mutex
	kinds  map[string]bool
	untold uint64
}

// varies is what differs between errors of one kind: numbers, and names in quotes.
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

// Suppressed is how many errors were not reported.
func (t *Teller) Suppressed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.untold
}
