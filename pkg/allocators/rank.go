package allocators

import (
	"slices"
)

// ByRank sorts functions by the expected frequency of calls: malloc and operator new, then calloc and realloc, then rare ones.
// Functions that free memory are last.
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

// At returns the program for the function's entry.
func (f Function) At() Program {
	if f.Program == Throws {
		return SizeFirst
	}
	return f.Program
}
