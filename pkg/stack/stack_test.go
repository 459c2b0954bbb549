package stack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

const (
	testStart   = 0xffffffff81000000
	testEnd     = 0xffffffff83000000
	testBuildID = "7bdad2f33eb864144f7545c504378f3db829fd87"
	otherID     = "91f01b4ad171c80b6303d08d1f08cba8b990413d"
)

func testSymbols() *KernelSymbols {
	return &KernelSymbols{Start: testStart, End: testEnd, BuildID: testBuildID}
}

// list formats entries like Inspektor Gadget.
func list(entries ...string) []byte {
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(e)
		b.WriteString("; ")
	}
	return []byte(b.String())
}

func addresses(addrs ...uint64) []byte {
	var entries []string
	for _, a := range addrs {
		entries = append(entries, fmt.Sprintf("0x%016x", a))
	}
	return list(entries...)
}

func names(frames []profile.Frame) []string {
	var s []string
	for _, f := range frames {
		s = append(s, f.Name)
	}
	return s
}

const goShape = "main.f[go.shape.struct { A int; B string }]"

// cutShape is a name that was cut before its closing brackets.
var cutShape = ("main.g[go.shape.interface { Close() error; Get(string) (int, error); " + strings.Repeat("Put(int) error; ", 20))[:cutLength]

func TestSplit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want int
		out  []string
	}{
		{"nothing", "", -1, nil},
		{"only a separator", "; ", -1, nil},
		{"one", "main; ", -1, []string{"main"}},
		{"no separator at the end", "a; b", -1, []string{"a", "b"}},
		{"half a separator at the end", "a; b;", -1, []string{"a", "b"}},
		{"an empty entry", "a; ; b; ", -1, []string{"a", "", "b"}},
		{"Go type arguments", goShape + "; main.main; ", -1, []string{goShape, "main.main"}},
		{"Go type arguments, counted", goShape + "; main.main; ", 2, []string{goShape, "main.main"}},
		{"the same, where each separator counts", goShape + "; main.main; ", 3, []string{"main.f[go.shape.struct { A int", "B string }]", "main.main"}},
		{"no count is right", goShape + "; main.main; ", 7, []string{goShape, "main.main"}},
		{"Go interfaces and channels", "m.g[interface { F(<-chan int); G() }]; m.h[chan<- struct { A, B int; C uint8 }].func1; ", -1, []string{"m.g[interface { F(<-chan int); G() }]", "m.h[chan<- struct { A, B int; C uint8 }].func1"}},
		{"Rust arrays", "<[u8; 32] as core::fmt::Debug>::fmt; core::ops::function::FnOnce::call_once; ", -1, []string{"<[u8; 32] as core::fmt::Debug>::fmt", "core::ops::function::FnOnce::call_once"}},
		{"C++ operators", "A::operator<(A const&) const; A::operator->(); A::operator>>(int); operator<=><int>; B::operator[](int); std::less<int>::operator()(int) const; ", -1, []string{"A::operator<(A const&) const", "A::operator->()", "A::operator>>(int)", "operator<=><int>", "B::operator[](int)", "std::less<int>::operator()(int) const"}},
		{"an opening bracket without partner", "a[; b; c; ", -1, []string{"a[", "b", "c"}},
		{"a closing bracket without partner", "a]; b); c}; ", -1, []string{"a]", "b)", "c}"}},
		{"brackets that cross", "a{[; b]; c; ", -1, []string{"a{[; b]", "c"}},
		{"two names that make a pair", "a[; b]; c; ", -1, []string{"a[; b]", "c"}},
		{"two names that make a pair, counted", "a[; b]; c; ", 3, []string{"a[", "b]", "c"}},
		{"a name that was cut", "a; " + cutShape + "; b; ", 3, []string{"a", cutShape, "b"}},
		{"the first and the last name were cut", cutShape + "; " + goShape + "; " + cutShape + "; ", 3, []string{cutShape, goShape, cutShape}},
		{"a name that was cut behind a bracket without partner", "operator(; " + cutShape + "; b; ", 3, []string{"operator(", cutShape, "b"}},
		{"unknown symbols", "[unknown]; [unknown]; ", -1, []string{"[unknown]", "[unknown]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s splitter
			spans := s.split(tt.text, tt.want)
			var out []string
			for _, p := range spans {
				out = append(out, tt.text[p.start:p.end])
			}
			require.Equal(t, tt.out, out)
		})
	}
}

func TestFunctionName(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, out string }{
		{"main", "main"},
		{"", ""},
		{"[unknown]", ""},
		{"0x7f12a4b3c2d1", ""},
		{"0X7F", ""},
		{"0x", ""},
		{"0xnotanaddress", ""},
		{"0", "0"},
		{"libc.so.6+0x1c3f0", "libc.so.6"},
		{"vfs_read+0x12", "vfs_read"},
		{"+0x12", ""},
		{"0x12+0x12", ""},
		{"operator+", "operator+"},
		{"f+0x", "f+0x"},
		{"f+0xyz", "f+0xyz"},
		{"f+0x00112233445566778", "f+0x00112233445566778"},
		{"f+0x0011223344556677", "f"},
		{"abcdef", "abcdef"},
		{strings.Repeat("x", MaxNameLen), strings.Repeat("x", MaxNameLen)},
		{strings.Repeat("x", MaxNameLen+1), strings.Repeat("x", MaxNameLen)},
		{strings.Repeat("x", MaxNameLen-1) + "é", strings.Repeat("x", MaxNameLen-1)},
		{strings.Repeat("x", MaxNameLen-2) + "é!", strings.Repeat("x", MaxNameLen-2) + "é"},
		{strings.Repeat("\x80", MaxNameLen+10), strings.Repeat("\x80", MaxNameLen)},
		{"\xff\xfe", "\xff\xfe"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.out, functionName(tt.in), "%.40q", tt.in)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	require.Equal(t, Empty, Missing(0, false), "no such field")
	require.Equal(t, Empty, Missing(-1, true), "the gadget did not ask")
	require.Equal(t, Empty, Missing(-int32(unix.EFAULT), true), "no frames of that kind")
	require.Equal(t, Lost, Missing(-int32(unix.EEXIST), true), "its place was taken")
	require.Equal(t, Lost, Missing(-int32(unix.ENOMEM), true), "the map was full")
	require.Equal(t, Lost, Missing(0, true), "gone from the map")
	require.Equal(t, Lost, Missing(4711, true), "gone from the map")
}

// appendPlain reads a text without a known origin.
func appendPlain(dst []profile.Frame, text []byte) ([]profile.Frame, Outcome) {
	return NewUser(UserOptions{Plain: true}).Append(dst, text, nil, nil)
}

func TestPlain(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		text    string
		frames  []profile.Frame
		outcome Outcome
	}{
		{"nothing", "", nil, Empty},
		{"only separators", "; ; ; ", nil, Empty},
		{"names", "b; a", []profile.Frame{{Name: "b"}, {Name: "a"}}, OK},
		{"empty entries", "; b; ; a; ", []profile.Frame{{Name: "b"}, {Name: "a"}}, OK},
		{"an address", "0x1234; a", []profile.Frame{{Address: 0x1234}, {Name: "a"}}, OK},
		{"an address of the kernel", "0xffffffff81000010; a", []profile.Frame{{Name: Unknown}, {Name: "a"}}, OK},
		{"an unknown symbol", "[unknown]; a", []profile.Frame{{Name: Unknown}, {Name: "a"}}, OK},
		{"no address", "0x0; a", []profile.Frame{{Name: Unknown}, {Name: "a"}}, OK},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			frames, outcome := appendPlain(nil, []byte(tt.text))
			require.Equal(t, tt.outcome, outcome)
			require.Equal(t, tt.frames, frames)
		})
	}
}

func TestThousandsOfFrames(t *testing.T) {
	t.Parallel()
	entries := make([]string, 5000)
	addrs := make([]uint64, len(entries))
	for i := range entries {
		entries[i], addrs[i] = fmt.Sprintf("f%d", i), uint64(0x1000+i)
	}
	check := func(frames []profile.Frame, outcome Outcome) {
		t.Helper()
		require.Equal(t, Truncated, outcome)
		require.Len(t, frames, MaxFrames)
		require.Equal(t, "f0", frames[0].Name)
		require.Equal(t, "f1023", frames[MaxFrames-1].Name)
	}
	check(appendPlain(nil, list(entries...)))
	check(NewKernel(KernelOptions{}).Append(nil, list(entries...), 1, true))
	check(NewUser(UserOptions{}).Append(nil, list(entries...), nil, nil))
	frames, outcome := NewUser(UserOptions{}).Append(nil, list(entries[:1024]...), addresses(addrs...), nil)
	check(frames, outcome)
	require.EqualValues(t, 0x1000+1023, frames[1023].Address)

	// The kernel does not record more frames, so the real stack can be longer.
	frames, outcome = NewKernel(KernelOptions{}).Append(nil, list(entries[:recordedDepth]...), 1, true)
	require.Equal(t, Truncated, outcome)
	require.Len(t, frames, recordedDepth)

	frames, outcome = appendPlain(nil, list(entries[:MaxFrames]...))
	require.Equal(t, OK, outcome)
	require.Len(t, frames, MaxFrames)

	frames, outcome = appendPlain(nil, []byte(strings.Repeat("f; ; ", MaxFrames)))
	require.Equal(t, Truncated, outcome, "empty entries count, too")
	require.LessOrEqual(t, len(frames), MaxFrames)
}

func TestLongText(t *testing.T) {
	t.Parallel()
	text := list("leaf", strings.Repeat("x", 2*MaxTextLen), "root")
	frames, outcome := appendPlain(nil, text)
	require.Equal(t, Truncated, outcome)
	require.Equal(t, []string{"leaf"}, names(frames), "an entry that is cut is left out")

	// All separators are within brackets.
	text = []byte("f[" + strings.Repeat("; ", MaxTextLen) + "]; main; ")
	frames, outcome = appendPlain(nil, text)
	require.Equal(t, Truncated, outcome)
	require.LessOrEqual(t, len(frames), MaxFrames)
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	first := []profile.Frame{{Name: "first"}}
	frames, _ := NewKernel(KernelOptions{}).Append(first, list("bpf_trace_run4", "__schedule"), 0, false)
	frames, _ = NewUser(UserOptions{}).Append(frames, list("main"), nil, nil)
	frames, _ = appendPlain(frames, list("plain"))
	require.Equal(t, []string{"first", "__schedule", "main", "plain"}, names(frames))
}

// TestFramesOfAnOlderStack creates frames in memory that still holds another stack's frames.
func TestFramesOfAnOlderStack(t *testing.T) {
	t.Parallel()
	rich := func() []profile.Frame {
		frames := make([]profile.Frame, 2)
		for i := range frames {
			frames[i] = profile.Frame{
				Name: "old", File: "old.c", Line: 7, Address: 9, Type: profile.FrameGo,
				Mapping: profile.Mapping{File: "/old", GNUBuildID: testBuildID, Symbolized: true},
			}
		}
		return frames
	}
	user := func(dst []profile.Frame) []profile.Frame {
		dst, _ = NewUser(UserOptions{}).Append(dst, list("a", "b"), nil, nil)
		return dst
	}
	kernel := func(dst []profile.Frame) []profile.Frame {
		dst, _ = NewKernel(KernelOptions{}).Append(dst, list("a", "b"), 0, false)
		return dst
	}
	text := func(dst []profile.Frame) []profile.Frame {
		dst, _ = appendPlain(dst, list("a", "b"))
		return dst
	}
	for name, read := range map[string]func([]profile.Frame) []profile.Frame{"user": user, "kernel": kernel, "text": text} {
		require.Equal(t, read(nil), read(rich()[:0]), name)
	}
}

// TestBracketsWithoutPartners checks that a bracket without a partner has no effect, and that its cost does not depend on the
// number of open brackets.
func TestBracketsWithoutPartners(t *testing.T) {
	t.Parallel()
	open := strings.Repeat("(", maxBrackets-1)
	for _, tt := range []struct {
		text string
		want int
	}{
		{open + strings.Repeat("]", 100) + "; a; ", 2},
		{open + "[" + strings.Repeat("]", 100) + "; a; ", 2},
		{"f[x; y]" + strings.Repeat(")", 10) + "; a; ", 2},
		{"f(g[x; y)]; a; ", 2}, // [ has no partner, so ) removes the separators in between
		{"f{x; [y}; a; ", 2},
	} {
		var s splitter
		require.Len(t, s.split(tt.text, -1), tt.want, tt.text)
		for kind, n := range s.kinds {
			open := 0
			for _, b := range s.open {
				if kindOf(b.char) == kind {
					open++
				}
			}
			require.Equal(t, open, n, tt.text)
		}
	}
}
