package fieldmap

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// ValueCap limits the number of distinct values per attribute in a window. So one field cannot flood a backend that creates a
// series for every value. It belongs to one aggregator. Every Sample and Resource must pass it before the aggregator keeps it.
// Reset it when a new window begins. Rows with a known key skip it, so it costs them nothing.
//
// It is not safe for concurrent use.
type ValueCap struct {
	limit   int
	seed    maphash.Seed
	values  *bounded.Sets[uint64] // hashes of values, by attribute key
	dropped uint64
}

// NewValueCap returns a ValueCap with this limit. 0 or less means no limit.
func NewValueCap(limit int) *ValueCap {
	// The number of keys needs no limit, because the Plan knows all of them.
	return &ValueCap{limit: limit, seed: maphash.MakeSeed(), values: bounded.New[uint64](math.MaxInt, limit)}
}

// Filter returns attrs without the attributes over the limit. It modifies attrs. Attributes that identify a workload are never
// over the limit, because no field can write them.
func (c *ValueCap) Filter(attrs []profile.Attribute) []profile.Attribute {
	if c.limit <= 0 {
		return attrs
	}
	return slices.DeleteFunc(attrs, func(a profile.Attribute) bool {
		if c.values.Add(a.Key, maphash.Comparable(c.seed, a.Value)) || isIdentityKey(a.Key) {
			return false
		}
		c.dropped++
		return true
	})
}

// isIdentityKey reports whether key identifies a workload, in either spelling: k8s.pod.name or k8s_pod_name.
func isIdentityKey(key string) bool {
	return isIdentityLabel(label(key)) || slices.ContainsFunc(protectedPrefixes, func(p string) bool { return strings.HasPrefix(key, p+".") })
}

// Reset forgets all values.
func (c *ValueCap) Reset() { c.values.Clear() }

// Dropped returns how many attributes have been over the limit.
func (c *ValueCap) Dropped() uint64 { return c.dropped }
