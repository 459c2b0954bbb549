package stack

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// span is the position of an entry in a text.
type span struct{ start, end int }

// bracket is an open bracket without a closing bracket so far.
type bracket struct {
	char byte
	// seps is the number of separators before it.
	seps int
}

// maxBrackets limits the nesting of brackets. Deeper brackets count as ordinary characters.
const maxBrackets = 256

// splitter splits a list into its entries. It reuses its memory.
type splitter struct {
	spans []span
	seps  []int
	open  []bracket
	// kinds counts the open brackets of each kind, so a bracket without a partner needs no search.
	kinds [3]int
}

// split returns the positions of the entries of text, at most MaxFrames+1. They are valid until the next call. want is the
// expected number of entries, or negative if that is unknown.
//
// A separator can be part of a name: main.f[go.shape.struct { A int; B string }], or <[u8; 4] as core::fmt::Debug>::fmt. Such a
// separator is enclosed in brackets, so separators within (), [] and {} do not count. Angle brackets are ignored. No language
// puts a separator between angle brackets alone, and <, <<, ->, <=> and >> are also operator names. A bracket without a partner
// is an ordinary character.
//
// A program can use any names, so counting brackets is a heuristic. If splitting at each separator gives the expected number of
// entries, that is the result. Long names are cut, possibly without their closing brackets. split checks for that if there are
// too many entries.
func (s *splitter) split(text string, want int) []span {
	text = trimSeparator(text)
	s.spans = s.spans[:0]
	if text == "" {
		return s.spans
	}

	start, more := 0, true
	for more && len(s.spans) <= MaxFrames {
		var entry string
		entry, _, more = strings.Cut(text[start:], separator)
		s.spans = append(s.spans, span{start, start + len(entry)})
		start += len(entry) + len(separator)
	}
	if len(s.spans) == want || len(s.spans) == 1 {
		return s.spans
	}

	s.findSeparators(text, false)
	if want > 0 && len(s.seps)+1 > want {
		uncut := len(s.seps)
		if s.findSeparators(text, true); len(s.seps)+1 != want && len(s.seps) != uncut {
			s.findSeparators(text, false)
		}
	}
	s.spans, start = s.spans[:0], 0
	for _, sep := range s.seps {
		s.spans = append(s.spans, span{start, sep})
		if start = sep + len(separator); len(s.spans) > MaxFrames {
			return s.spans
		}
	}
	s.spans = append(s.spans, span{start, len(text)})
	return s.spans
}

// cutLength is the length at which Inspektor Gadget cuts user symbol names (MaxSymbolLength in
// https://github.com/inspektor-gadget/inspektor-gadget/blob/v0.55.0/pkg/symbolizer/table.go).
const cutLength = 256

// findSeparators sets seps to the positions of the separators outside brackets. It stops once there are more than any stack
// needs. With cut, a name of cutLength bytes ends there despite open brackets.
func (s *splitter) findSeparators(text string, cut bool) {
	s.seps, s.open, s.kinds = s.seps[:0], s.open[:0], [3]int{}
	for i := 0; i < len(text) && len(s.seps) < 4*MaxFrames; i++ {
		if isDelimiter[text[i]] {
			s.delimiter(text, i, cut)
		}
	}
	if cut {
		s.endCutName(len(text))
	}
}

var isDelimiter = [256]bool{';': true, '(': true, '[': true, '{': true, ')': true, ']': true, '}': true}

func (s *splitter) delimiter(text string, i int, cut bool) {
	switch c := text[i]; c {
	case ';':
		if i+1 < len(text) && text[i+1] == separator[1] {
			if cut {
				s.endCutName(i)
			}
			s.seps = append(s.seps, i)
		}
	case '(', '[', '{':
		if len(s.open) < maxBrackets {
			s.open = append(s.open, bracket{c, len(s.seps)})
			s.kinds[kindOf(c)]++
		}
	case ')', ']', '}':
		s.closeBracket(c)
	}
}

// endCutName removes the separators within a name of cutLength bytes that ends at end, if there is such a name with an open
// bracket.
func (s *splitter) endCutName(end int) {
	for i, b := range s.open {
		start := 0
		if b.seps > 0 {
			start = s.seps[b.seps-1] + len(separator)
		}
		if end-start == cutLength {
			s.seps = s.seps[:b.seps]
			s.forget(i)
			return
		}
	}
}

// closeBracket pairs the bracket c with the last open one of its kind, and removes the separators between the two. Brackets
// opened in between have no partner.
func (s *splitter) closeBracket(c byte) {
	kind := kindOf(c)
	if s.kinds[kind] == 0 {
		return
	}
	for i := len(s.open) - 1; i >= 0; i-- {
		if kindOf(s.open[i].char) == kind {
			s.seps = s.seps[:s.open[i].seps]
			s.forget(i)
			return
		}
	}
}

// forget removes the open brackets from index i on. They are closed or have no partner.
func (s *splitter) forget(i int) {
	for _, b := range s.open[i:] {
		s.kinds[kindOf(b.char)]--
	}
	s.open = s.open[:i]
}

// kindOf returns a bracket's kind, which is the same for an opening bracket and its partner.
func kindOf(c byte) int {
	switch c {
	case '(', ')':
		return 0
	case '[', ']':
		return 1
	}
	return 2
}

// trimSeparator removes the separator after the last entry.
func trimSeparator(text string) string {
	if t, ok := strings.CutSuffix(text, separator); ok {
		return t
	}
	return strings.TrimSuffix(text, ";")
}

// limitText returns the text as a string, and whether it was cut. It does not copy the text, so names are parts of it. A caller
// that keeps names must clone them.
func limitText(b []byte) (string, bool) {
	if len(b) <= MaxTextLen {
		return view(b), false
	}
	text := view(b[:MaxTextLen])
	if i := strings.LastIndex(text, separator); i >= 0 {
		text = text[:i+len(separator)]
	}
	return text, true
}

// view returns b as a string, which is only valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// functionName returns the function name in an entry of a symbol list, or "" for a hexadecimal address or an unknown symbol. It
// removes an offset after the name. Otherwise each instruction would become a function.
func functionName(entry string) string {
	if len(entry) == 0 || entry[0] == Unknown[0] && entry == Unknown || hasHexPrefix(entry) {
		return ""
	}
	return CutName(trimOffset(entry))
}

// trimOffset removes an offset like "+0x1f" from the end of a name.
func trimOffset(entry string) string {
	if i := strings.LastIndexByte(entry, '+'); i >= 0 {
		if _, ok := parseAddress(entry[i+1:]); ok {
			return entry[:i]
		}
	}
	return entry
}

// CutName cuts a name between runes to at most MaxNameLen bytes.
func CutName(s string) string { return printable.Cut(s, MaxNameLen) }

func hasHexPrefix(s string) bool {
	return len(s) >= 2 && s[0] == '0' && s[1]|0x20 == 'x'
}

// parseAddress parses a hexadecimal address like 0x00007f12a4b3c2d1.
func parseAddress(s string) (uint64, bool) {
	if !hasHexPrefix(s) {
		return 0, false
	}
	return parseHex(s[2:])
}

// parseHex parses 1 to 16 hexadecimal digits. It does not allocate if s is valid.
func parseHex(s string) (uint64, bool) {
	if len(s) > 16 {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil
}
