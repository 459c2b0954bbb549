// Package warnings reports each kind of error once in a run. Errors repeat often, and one kind must not hide another.
package warnings

import (
	"regexp"
	"sync/atomic"
)

// mostKinds limits the number of kinds, because workloads can influence error texts. Further kinds are only counted.
const mostKinds = 16

// Teller reports the first error of each kind and counts the others. It is safe for concurrent use.
type Teller struct {
	// Warn writes a line for users.
	Warn func(err error)

	kinds  Rate
	untold atomic.Uint64
}

// varies matches differences between errors of one kind: numbers and quoted names.
var varies = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|0x[0-9a-fA-F]+|[0-9]+`)

// Tell reports an error if it is the first of its kind. Errors of one kind only differ in numbers and quoted texts.
func (t *Teller) Tell(err error) {
	const longest = 1024
	text := err.Error()
	kind := varies.ReplaceAllString(text[:min(len(text), longest)], "#")
	if _, ok := t.kinds.due(kind, mostKinds); ok {
		t.Warn(err)
	} else {
		t.untold.Add(1)
	}
}

// Suppressed returns the number of errors that were not reported.
func (t *Teller) Suppressed() uint64 { return t.untold.Load() }
