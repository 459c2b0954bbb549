// Package bounded limits how many names programs can choose for themselves.
package bounded

// Sets has a set of keys for each owner. The numbers of owners and of each owner's keys are limited. It is not safe for concurrent
// use.
type Sets[K comparable] struct {
	owners, keys int
	sets         map[string]map[K]bool
}

// New returns empty Sets for that many owners, and for that many keys of each.
func New[K comparable](owners, keys int) *Sets[K] {
	return &Sets[K]{owners, keys, map[string]map[K]bool{}}
}

// Add adds a key to an owner's set, unless the set is full. It reports whether the set then contains the key. If there are too many
// owners, Add forgets all of them first.
func (s *Sets[K]) Add(owner string, key K) bool {
	set := s.sets[owner]
	if set == nil {
		if len(s.sets) >= s.owners {
			s.Clear()
		}
		set = map[K]bool{}
		s.sets[owner] = set
	}
	if len(set) < s.keys {
		set[key] = true
	}
	return set[key]
}

// Clear forgets all owners.
func (s *Sets[K]) Clear() { clear(s.sets) }
