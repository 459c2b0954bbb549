// Package printable makes text from workloads safe to show and to send.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean replaces invalid UTF-8 and control characters, which a terminal would obey, by U+FFFD. It also replaces characters that
// end a line or change the direction of text. If s has none of these, Clean returns s without an allocation.
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

// Cut returns s if it is shorter than n bytes, or else its first n bytes without an incomplete rune at the end.
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
