package config

import (
	"cmp"
	"slices"
	"strings"
)

// nearest returns the candidate that a typing mistake most likely meant, or "" where none is near.
func nearest(word string, candidates []string) string {
	best, bestDistance := "", max(len(word)/2, 2)+1
	for _, candidate := range candidates {
		if d := distance(word, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// Nearest returns the candidate that is nearest to word, however far that is.
func Nearest(word string, candidates []string) string {
	return slices.MinFunc(candidates, func(a, b string) int { return cmp.Compare(distance(word, a), distance(word, b)) })
}

// oneOf says which of the candidates is meant, with what stands in front of it, or which ones owner takes.
func oneOf(prefix, word, owner string, candidates []string) string {
	if near := nearest(word, candidates); near != "" {
		return "the nearest one is " + prefix + near
	}
	return owner + " takes " + strings.Join(candidates, ", ")
}

// distance counts the characters to insert, delete, replace or swap with their neighbour.
func distance(a, b string) int {
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(last[j]+1, next[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}
