package stack

import (
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// splitters reuses memory between calls.
var splitters = sync.Pool{New: func() any { return new(splitter) }}

// AppendPlain appends the frames of a stack to dst from a text field of the form "leaf; caller; … ". A frame gets a name, or an
// address if its entry is a hexadecimal address. Frames get no type, because their origin is unknown. Kernel addresses and
// empty entries are dropped. If nothing is left, the outcome is Empty. The names of frames are parts of symbols.
func AppendPlain(dst []profile.Frame, symbols []byte) ([]profile.Frame, Outcome) {
	text, truncated := limitText(symbols)
	s := splitters.Get().(*splitter)
	defer splitters.Put(s)
	spans := s.split(text, -1)
	if len(spans) > MaxFrames {
		spans, truncated = spans[:MaxFrames], true
	}
	start := len(dst)
	for _, p := range spans {
		entry := text[p.start:p.end]
		if entry == "" {
			continue
		}
		dst = append(dst, profile.Frame{})
		f := &dst[len(dst)-1]
		f.Name = functionName(entry)
		if addr, ok := parseAddress(entry); ok {
			f.Address = userAddress(addr)
		}
		if f.Name == "" && f.Address == 0 {
			f.Name = Unknown
		}
	}
	switch {
	case len(dst) == start:
		return dst, Empty
	case truncated:
		return dst, Truncated
	}
	return dst, OK
}
