package stack

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// checkFrames checks the conditions that all frames must fulfil.
func checkFrames(t *testing.T, frames []profile.Frame, outcome Outcome) {
	t.Helper()
	switch outcome {
	case OK, Truncated:
		if len(frames) == 0 {
			t.Fatalf("%d without frames", outcome)
		}
	case Empty, Lost:
		if len(frames) != 0 {
			t.Fatalf("%d with frames", outcome)
		}
	default:
		t.Fatalf("outcome %d", outcome)
	}
	if len(frames) > MaxFrames {
		t.Fatalf("%d frames", len(frames))
	}
	for i, f := range frames {
		if hasHexPrefix(f.Name) || len(f.Name) > MaxNameLen {
			t.Fatalf("frame %d: name %q", i, f.Name)
		}
		if f.Name == "" && f.Address == 0 && f.Mapping == (profile.Mapping{}) {
			t.Fatalf("frame %d is empty", i)
		}
		if f.Address>>63 != 0 {
			t.Fatalf("frame %d: an address of the kernel: %#x", i, f.Address)
		}
		if f.Mapping != (profile.Mapping{}) && f.Mapping.GNUBuildID == "" {
			t.Fatalf("frame %d: a mapping without a build ID: %+v", i, f.Mapping)
		}
		if f.Mapping.Symbolized && f.Name == "" {
			t.Fatalf("frame %d: a mapping that says it has functions, without one", i)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "; ", "a; b; ", goShape + "; main; ", "<[u8; 4]>::f; ", "a[; b]; c{; d}; "} {
		f.Add(s, 2)
	}
	f.Fuzz(func(t *testing.T, text string, want int) {
		var s splitter
		spans := s.split(text, want)
		if len(spans) > MaxFrames+1 {
			t.Fatalf("%d entries", len(spans))
		}
		// The entries and the text between them must make up the whole text.
		var joined strings.Builder
		for i, p := range spans {
			if i > 0 {
				joined.WriteString(separator)
			}
			joined.WriteString(text[p.start:p.end])
		}
		if whole := trimSeparator(text); len(spans) <= MaxFrames && joined.String() != whole {
			t.Fatalf("%q became %q", whole, joined.String())
		}
		for _, p := range spans {
			if p.start > p.end || p.end > len(text) {
				t.Fatalf("entry %+v", p)
			}
		}
	})
}

func FuzzAppend(f *testing.F) {
	f.Add(list("github.com/example/server/pkg/handler.(*H).step"), addresses(0x7f0000000000), list(otherID+" +1000"), int32(1))
	f.Add([]byte(goShape+"; 0x1234; [unknown]; "), addresses(1, 2, 0xffffffff81000010), list(otherID+" +1", "7f12"), int32(-17))
	f.Add(list("a", "[unknown]"), list("0x1", "0x2"), list(otherID+" +a"), int32(-14))
	f.Add(list("bpf_prog_0123456789abcdef_x", "bpf_trace_run4", "__schedule"), []byte{}, []byte{}, int32(0))
	f.Add([]byte("+0x1; 0X; ;; ; \xff\xfe; "), []byte("; ; "), []byte(" +; + +"), int32(-1))
	f.Fuzz(func(t *testing.T, symbols, addrs, buildIDs []byte, id int32) {
		u := NewUser(UserOptions{})
		for range 2 {
			frames, outcome := u.Append(nil, symbols, addrs, buildIDs)
			checkFrames(t, frames, outcome)
		}
		k := NewKernel(KernelOptions{Symbols: testSymbols()})
		frames, outcome := k.Append(nil, symbols, id, true)
		checkFrames(t, frames, outcome)
		frames, outcome = NewKernel(KernelOptions{}).Append(nil, symbols, id, false)
		checkFrames(t, frames, outcome)
		frames, outcome = appendPlain(nil, symbols)
		checkFrames(t, frames, outcome)
	})
}

func FuzzDemangle(f *testing.F) {
	for _, s := range []string{"", "main", "_ZNSt6vectorIiSaIiEE9push_backERKi", "_RINvNtC3std3mem8align_ofjE", "_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "___Z3foo_block_invoke", "_GLOBAL__I_foo", doubling(12), rustDoubling(12, 3)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		out := Demangle(name)
		if out == name {
			return
		}
		if out == "" || len(out) > MaxNameLen {
			t.Fatalf("%q became %q", name, out)
		}
		if utf8.ValidString(name) && strings.ContainsRune(out, utf8.RuneError) && !strings.ContainsRune(name, utf8.RuneError) {
			t.Fatalf("%q became %q", name, out)
		}
	})
}
