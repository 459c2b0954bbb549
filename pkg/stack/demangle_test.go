package stack

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestDemangle(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, out string }{
		{"C", "do_sys_open", "do_sys_open"},
		{"nothing", "", ""},
		{"Go", goShape, goShape},
		{"C++", "_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"},
		{"C++ operator", "_ZNK4Less1AltERKS0_", "Less::A::operator<(Less::A const&) const"},
		{"C++ clone", "_Z3fooi.isra.0", "foo(int) [clone .isra.0]"},
		{"Rust, legacy", "_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"},
		{"Rust, legacy, with escapes", "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE", "<Test + 'static as foo::Bar<Test>>::bar"},
		{"Rust v0", "_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"},
		{"Rust v0, generic", "_RINvNtC3std3mem8align_ofjE", "std::mem::align_of::<usize>"},
		{"not well formed", "_ZN", "_ZN"},
		{"only like it", "_Rational", "_Rational"},
		{"as long as can be", "_Z1017" + strings.Repeat("f", 1017) + "v", strings.Repeat("f", 1017) + "()"},
		{"too long", "_Z1100" + strings.Repeat("f", 1100) + "v", "_Z1100" + strings.Repeat("f", 1100) + "v"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.out, Demangle(tt.in))
		})
	}
}

// doubling returns a C++ symbol with n nested types. Each contains the previous one twice.
func doubling(n int) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b strings.Builder
	b.WriteString("_Z1f1PIiiE")
	// The first substitution is the template 1P, and the second is P<int, int>.
	for i := range n {
		sub := "S" + string(digits[i]) + "_"
		b.WriteString("S_I" + sub + sub + "E")
	}
	return b.String()
}

func TestDemangleIsBounded(t *testing.T) {
	t.Parallel()
	for n := 1; n < 30; n++ {
		in := doubling(n)
		require.Less(t, len(in), maxMangledLen)
		out := Demangle(in)
		require.LessOrEqual(t, len(out), MaxNameLen)
		require.NotEmpty(t, out)
	}
	require.Len(t, Demangle(doubling(20)), MaxNameLen, "a symbol whose name has megabytes")
}

// rustDoubling returns a Rust symbol with n nested tuples. Each contains the previous one twice. The innermost type's name has
// pad letters and then "ü".
func rustDoubling(n, pad int) string {
	// A back reference is a position in the symbol, counted from after "_R", in base 62.
	backref := func(pos int) string {
		const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		if pos == 0 {
			return "B_"
		}
		if pos--; pos < 62 {
			return "B" + digits[pos:pos+1] + "_"
		}
		return "B" + digits[pos/62:pos/62+1] + digits[pos%62:pos%62+1] + "_"
	}
	const head = "INvC1a1f"
	var b strings.Builder
	b.WriteString("_R" + head + strings.Repeat("T", n))
	ident := strings.Repeat("x", pad) + "_tda"
	if pad == 0 {
		ident = "tda"
	}
	fmt.Fprintf(&b, "NtC1au%d%s", len(ident), ident)
	for i := n; i > 0; i-- {
		b.WriteString(backref(len(head)+i) + "E")
	}
	b.WriteString("E")
	return b.String()
}

func TestDemangleCutsNoRune(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a::f::<(a::ü, a::ü)>", Demangle(rustDoubling(1, 0)))
	lengths := map[int]bool{}
	for pad := range 200 {
		out := Demangle(rustDoubling(20, pad))
		require.True(t, utf8.ValidString(out), "ends in %q", out[len(out)-8:])
		lengths[len(out)] = true
	}
	require.Contains(t, lengths, MaxNameLen)
	require.Contains(t, lengths, MaxNameLen-1, "no name was cut within a rune")
}
