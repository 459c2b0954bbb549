package allocators

import (
	"slices"
)

// ByRank sorts functions by how often they are probably called. malloc and operator new come first, then calloc and realloc,
// then rare functions. Functions that free memory are last.
func ByRank(functions []Function) []Function {
	rank := func(p Program) int {
		switch p {
		case SizeFirst:
			return 0
		case CountSize, AddressSize:
			return 1
		case Address:
			return 3
		default:
			return 2
		}
	}
	return slices.SortedStableFunc(slices.Values(functions), func(a, b Function) int { return rank(a.At()) - rank(b.At()) })
}

// At returns the program to attach at the function's entry.
func (f Function) At() Program {
	if f.Program == Throws {
		return SizeFirst
	}
	return f.Program
}
