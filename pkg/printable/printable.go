// Package printable makes text that a workload has chosen fit to be shown and sent.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns s with the replacement character U+FFFD for invalid UTF-8 and control characters, which a terminal would obey. It
// also replaces characters that end a line or change the text's direction. It returns s itself, and does not allocate, if s has
// none of these.
func Clean(s string) string {
	i := 0
	for i < len(s) && s[i] >= ' ' && s[i] < 0x7f {
		i++
	}
	if i == len(s) { // nearly always
		return s
	}
	if utf8.ValidString(s[i:]) && !strings.ContainsFunc(s[i:], unfit) {
		return s
	}
	return strings.Map(func(c rune) rune {
		if unfit(c) {
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
}

func unfit(c rune) bool {
	return unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) || c == '\u2028' || c == '\u2029'
}

// Cut returns s, or its first n bytes if it is longer, without a rune that is incomplete at their end.
func Cut(s string, n int) string {
	if len(s) < n {
		return s
	}
	s = s[:n]
	for i := 1; i <= min(utf8.UTFMax-1, n); i++ {
		if utf8.RuneStart(s[n-i]) {
			if !utf8.FullRuneInString(s[n-i:]) {
				return s[:n-i]
			}
			break
		}
	}
	return s
}
