package config

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest returns the candidate with the smallest distance to word.
func Nearest(word string, candidates []string) string {
	return slices.MinFunc(candidates, func(a, b string) int { return cmp.Compare(Distance(word, a), Distance(word, b)) })
}

// near reports whether word can be a misspelling of candidate.
func near(word, candidate string) bool { return Distance(word, candidate) <= max(len(word)/2, 2) }

// oneOf names the candidate that the user probably meant, or lists all candidates of owner.
func oneOf(prefix, word, owner string, candidates []string) string {
	if nearest := Nearest(word, candidates); near(word, nearest) {
		return "the closest match is " + prefix + nearest
	}
	return owner + " accepts " + strings.Join(candidates, ", ")
}

// Distance counts the insertions, deletions, replacements and swaps of neighbours between a and b. It only compares the start
// of a very long text.
func Distance(a, b string) int {
	a, b = clip(a), clip(b)
	d := make([][]int, len(a)+1) // d[i][j] is the distance of a[:i] and b[:j]
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], 1+d[i-2][j-2])
				}
			}
		}
	}
	return d[len(a)][len(b)]
}
