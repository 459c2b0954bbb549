package allocators

import (
	"slices"
)

// ByRank returns functions by how often they are called: malloc and operator new, then calloc and realloc, then rarely called
// ones. Those that free are last.
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

// At is the program that is called where the function begins.
func (f Function) At() Program {
	if f.Program == Throws {
		return SizeFirst
	}
	return f.Program
}
