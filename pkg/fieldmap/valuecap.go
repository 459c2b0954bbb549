package fieldmap

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// ValueCap bounds the number of distinct values of an attribute. So one wild field does not flood a backend that makes a series
// of every value. It belongs to one aggregator. Let every Sample and Resource go through it before the aggregator keeps it, and
// Reset it when a new window begins. Rows with a known key skip it, so it costs them nothing. It bounds the values that a window
// adds.
//
// It is not safe for concurrent use.
type ValueCap struct {
	limit   int
	seed    maphash.Seed
	seen    map[string]*seenValues // by key
	dropped uint64
}

type seenValues struct {
	any    bool // of an attribute that has no limit
	hashes map[uint64]struct{}
}

// NewValueCap returns a ValueCap of that many values; 0 or less means no limit.
func NewValueCap(limit int) *ValueCap {
	return &ValueCap{limit: limit, seed: maphash.MakeSeed(), seen: map[string]*seenValues{}}
}

// Filter returns attrs without the attributes that are over the cap. It changes attrs. The
// attributes that tell one workload from another are never over it: a field cannot write them.
func (c *ValueCap) Filter(attrs []profile.Attribute) []profile.Attribute {
	if c.limit <= 0 {
		return attrs
	}
	return slices.DeleteFunc(attrs, func(a profile.Attribute) bool {
		seen := c.seen[a.Key]
		if seen == nil {
			seen = &seenValues{any: isIdentityKey(a.Key), hashes: map[uint64]struct{}{}}
			c.seen[a.Key] = seen
		}
		if seen.any {
			return false
		}
		h := maphash.Comparable(c.seed, a.Value)
		if _, ok := seen.hashes[h]; ok {
			return false
		}
		if len(seen.hashes) >= c.limit {
			c.dropped++
			return true
		}
		seen.hashes[h] = struct{}{}
		return false
	})
}

// isIdentityKey knows a key in both of its spellings, k8s.pod.name and k8s_pod_name.
func isIdentityKey(key string) bool {
	return isIdentityLabel(label(key)) || slices.ContainsFunc(protectedPrefixes, func(p string) bool { return strings.HasPrefix(key, p+".") })
}

// Reset forgets the values that were seen.
func (c *ValueCap) Reset() {
	for _, seen := range c.seen {
		clear(seen.hashes)
	}
}

// Dropped returns how many attributes were over the cap since the ValueCap was made.
func (c *ValueCap) Dropped() uint64 { return c.dropped }
