package stack

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainSplit is a simple version of splitter.split that reads character by character.
func plainSplit(text string, want int) []span {
	if text = trimSeparator(text); text == "" {
		return nil
	}
	seps := []int{}
	for at := 0; ; {
		i := strings.Index(text[at:], separator)
		if i < 0 {
			break
		}
		seps = append(seps, at+i)
		at += i + len(separator)
	}
	if n := min(len(seps), MaxFrames) + 1; n != want && n != 1 && strings.ContainsAny(text, "([{") {
		seps = plainSeparators(text, false)
		if want > 0 && len(seps)+1 > want {
			if cut := plainSeparators(text, true); len(cut)+1 == want {
				seps = cut
			} else if len(cut) == len(seps) {
				seps = cut
			}
		}
	}
	var spans []span
	start := 0
	for _, sep := range append(seps, len(text)) {
		if len(spans) <= MaxFrames {
			spans = append(spans, span{start, sep})
		}
		start = sep + len(separator)
	}
	return spans
}

func plainSeparators(text string, cut bool) (seps []int) {
	var s splitter
	for i := 0; i < len(text) && len(s.seps) < 4*MaxFrames; i++ {
		s.delimiter(text, i, cut)
	}
	if cut {
		s.endCutName(len(text))
	}
	return s.seps
}

func TestSplitIsPlainSplit(t *testing.T) {
	parts := []string{"; ", "; ", ";", " ", "(", ")", "[", "]", "{", "}", "main.work", "a", "é", "\x00", "(*T)", "[go.shape.int; 4]", strings.Repeat("n", 200)}
	r := rand.New(rand.NewPCG(1, 2))
	var s splitter
	for range 20_000 {
		var b strings.Builder
		for range r.IntN(40) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		text, want := b.String(), r.IntN(12)-1
		spans := s.split(text, want)
		require.Equal(t, plainSplit(text, want), append([]span(nil), spans...), "%q for %d", text, want)
	}
	for _, part := range []string{"a; ", "(a); ", "(; ", "a(b; c); "} {
		text := strings.Repeat(part, 5*MaxFrames)
		require.Equal(t, plainSplit(text, -1), s.split(text, -1), part)
	}
}

func TestParseHex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		want := r.Uint64() >> r.IntN(64)
		text := fmt.Sprintf([]string{"%016x", "%016X", "%x"}[r.IntN(3)], want)
		got, ok := parseHex(text)
		require.True(t, ok)
		require.Equal(t, want, got, text)
	}
	for c := range 256 { // at each position of an address
		for k := range 16 {
			b := []byte("0123456789abcdef")
			b[k] = byte(c)
			_, ok := parseHex(string(b))
			require.Equal(t, strings.IndexByte("0123456789abcdefABCDEF", byte(c)) >= 0, ok, "%q", b)
		}
	}
	for _, text := range []string{"", "0x1", "1_0", "00000000000000001"} {
		_, ok := parseHex(text)
		require.False(t, ok, text)
	}
}
