package stack

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestUser(t *testing.T) {
	cut := ("internal/par.(*Cache[go.shape.struct { path string; parentPath string; " + strings.Repeat("x string; ", 40))[:256]

	t.Parallel()
	const native = profile.FrameNative
	withSymbol := profile.Mapping{GNUBuildID: otherID, Symbolized: true}
	bare := profile.Mapping{GNUBuildID: otherID}
	tests := []struct {
		name      string
		symbols   []byte
		addresses []byte
		buildIDs  []byte
		frames    []profile.Frame
		outcome   Outcome
	}{
		{name: "nothing was collected", outcome: Empty},
		{
			name:      "everything",
			symbols:   list("chroot", "__libc_start_call_main"),
			addresses: addresses(0x7ff9dd7734fb, 0x7ff9dd6763b8),
			buildIDs:  list(otherID+" +1274fb", otherID+" +2a3b8"),
			frames: []profile.Frame{
				{Name: "chroot", Address: 0x1274fb, Mapping: withSymbol, Type: native},
				{Name: "__libc_start_call_main", Address: 0x2a3b8, Mapping: withSymbol, Type: native},
			},
		},
		{
			name:      "symbols and addresses",
			symbols:   list("a", "b"),
			addresses: addresses(1, 2),
			frames:    []profile.Frame{{Name: "a", Address: 1, Type: native}, {Name: "b", Address: 2, Type: native}},
		},
		{
			name:      "symbolized and bare frames of one file",
			symbols:   list("a", "0x2002"),
			addresses: addresses(0x2001, 0x2002),
			buildIDs:  list(otherID+" +1", otherID+" +2"),
			frames: []profile.Frame{
				{Name: "a", Address: 1, Mapping: withSymbol, Type: native},
				{Address: 2, Mapping: bare, Type: native},
			},
		},
		{
			name:      "a process that is gone: addresses in place of symbols",
			symbols:   list("0x7f0000000001", "0x7f0000000002"),
			addresses: addresses(0x7f0000000001, 0x7f0000000002),
			frames:    []profile.Frame{{Address: 0x7f0000000001, Type: native}, {Address: 0x7f0000000002, Type: native}},
		},
		{
			name:      "no symbolizer",
			addresses: addresses(0x7f0000000001, 0x7f0000000002),
			buildIDs:  list(otherID+" +10", "7f0000000002"),
			frames:    []profile.Frame{{Address: 0x10, Mapping: bare, Type: native}, {Address: 0x7f0000000002, Type: native}},
		},
		{
			name:    "symbols alone",
			symbols: list("a", "0x7f01", "[unknown]"),
			frames:  []profile.Frame{{Name: "a", Type: native}, {Address: 0x7f01, Type: native}, {Name: Unknown, Type: native}},
		},
		{
			name:      "fewer symbols than addresses",
			symbols:   list("a"),
			addresses: addresses(0x4001, 0x4002),
			frames:    []profile.Frame{{Name: "a", Address: 0x4001, Type: native}, {Address: 0x4002, Type: native}},
		},
		{
			name:      "more symbols than addresses: an interpreter's stack",
			symbols:   list("inner", "0x55", "outer", ""),
			addresses: addresses(1, 2),
			buildIDs:  list(otherID+" +a", otherID+" +b"),
			frames:    []profile.Frame{{Name: "inner"}, {Address: 0x55}, {Name: "outer"}, {Name: Unknown}},
		},
		{
			name:      "fewer build IDs than addresses",
			symbols:   list("a", "b"),
			addresses: addresses(1, 2),
			buildIDs:  list(otherID + " +a"),
			frames:    []profile.Frame{{Name: "a", Address: 10, Mapping: withSymbol, Type: native}, {Name: "b", Address: 2, Type: native}},
		},
		{
			name:     "build IDs alone",
			buildIDs: list(otherID+" +a", "7f02"),
			frames:   []profile.Frame{{Address: 10, Mapping: bare, Type: native}, {Address: 0x7f02, Type: native}},
		},
		{
			name:      "an empty symbol",
			symbols:   list("", "b"),
			addresses: addresses(1, 2),
			frames:    []profile.Frame{{Address: 1, Type: native}, {Name: "b", Address: 2, Type: native}},
		},
		{
			name:      "text that is no address and no build ID",
			symbols:   list("a", "b", "c", "d"),
			addresses: list("0xzz", "1234", "", "0x00000000000000001"),
			buildIDs:  list("xyz +1", otherID+" +", otherID+"00 +1", " +1"),
			frames:    []profile.Frame{{Name: "a", Type: native}, {Name: "b", Type: native}, {Name: "c", Type: native}, {Name: "d", Type: native}},
		},
		{
			name:      "an address of the kernel",
			addresses: addresses(0xffffffff81000000),
			frames:    []profile.Frame{{Name: Unknown, Type: native}},
		},
		{
			name:      "a walk that went on into a canary",
			symbols:   list("leaf", "main", "0x4015a0", "0xbe552274c0854800", "0x4017"),
			addresses: addresses(0x40163b, 0x401680, 0x4015a0, 0xbe552274c0854800, 0x4017),
			frames:    []profile.Frame{{Name: "leaf", Address: 0x40163b, Type: native}, {Name: "main", Address: 0x401680, Type: native}, {Address: 0x4015a0, Type: native}},
		},
		{
			name:      "a jump to nowhere is the leaf",
			symbols:   list("0x8", "main"),
			addresses: addresses(8, 0x401680),
			frames:    []profile.Frame{{Address: 8, Type: native}, {Name: "main", Address: 0x401680, Type: native}},
		},
		{
			name:      "a name that was cut within its brackets",
			symbols:   list(cut, "main.f[go.shape.struct { A int; B string }]", "main.main"),
			addresses: addresses(0x401000, 0x402000, 0x403000),
			frames: []profile.Frame{
				{Name: cut, Address: 0x401000, Type: native},
				{Name: "main.f[go.shape.struct { A int; B string }]", Address: 0x402000, Type: native},
				{Name: "main.main", Address: 0x403000, Type: native},
			},
		},
		{
			name:      "an offset of 0",
			addresses: addresses(0x1000),
			buildIDs:  list(otherID + " +0"),
			frames:    []profile.Frame{{Mapping: bare, Type: native}},
		},
		{
			name:      "a build ID of 16 bytes, padded, in upper case",
			addresses: addresses(1),
			buildIDs:  list("0123456789ABCDEF0123456789ABCDEF00000000 +1"),
			frames:    []profile.Frame{{Address: 1, Mapping: profile.Mapping{GNUBuildID: "0123456789abcdef0123456789abcdef"}, Type: native}},
		},
		{
			name:      "a build ID of 20 bytes that ends in zeros",
			addresses: addresses(1),
			buildIDs:  list("0123456789abcdef0123456789abcdef01000000 +1"),
			frames:    []profile.Frame{{Address: 1, Mapping: profile.Mapping{GNUBuildID: "0123456789abcdef0123456789abcdef01000000"}, Type: native}},
		},
		{
			name:      "a build ID of zeros",
			addresses: addresses(0x77),
			buildIDs:  list(strings.Repeat("0", 40) + " +1"),
			frames:    []profile.Frame{{Address: 0x77, Type: native}},
		},
	}
	u := NewUser(UserOptions{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Read twice, because a User reuses memory.
			for range 2 {
				frames, outcome := u.Append(nil, tt.symbols, tt.addresses, tt.buildIDs)
				require.Equal(t, tt.outcome, outcome)
				require.Equal(t, tt.frames, frames)
			}
		})
	}
}

// TestUserReadsWithoutAllocating checks that valid addresses and build IDs, once known, take no memory.
func TestUserReadsWithoutAllocating(t *testing.T) {
	u := NewUser(UserOptions{})
	dst := make([]profile.Frame, 0, 3)
	symbols, addrs := list("main.work+0x1f", "0x7f0000000002", "[unknown]"), addresses(1<<40, 0x7f0000000002, 3<<40)
	buildIDs := list(otherID+" +1274fb", "7f0000000002", otherID+" +2a3b8")
	require.Zero(t, testing.AllocsPerRun(10, func() { u.Append(dst, symbols, addrs, buildIDs) }))
}

func TestUserBoundsKnownBuildIDs(t *testing.T) {
	t.Parallel()
	u := NewUser(UserOptions{})
	for i := range 3 * maxKnownIDs {
		id := []byte("0000000000000000000000000000000000000000")
		copy(id, []byte(strings.ToLower(strings.Repeat("f", 8))))
		for d := range 8 {
			id[8+d] = "0123456789abcdef"[i>>(4*d)&15]
		}
		_, outcome := u.Append(nil, nil, addresses(1), list(string(id)+" +1"))
		require.Equal(t, OK, outcome)
		require.LessOrEqual(t, len(u.known), maxKnownIDs)
	}
}
