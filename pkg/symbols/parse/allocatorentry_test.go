package parse

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

func TestWithQuickEntries(t *testing.T) {
	if machine != elf.EM_X86_64 {
		t.Skip("only x86's are known")
	}
	for _, tt := range []struct {
		name  string
		code  []byte
		moved uint64
	}{
		{"malloc of glibc", []byte{0x41, 0x54, 0x55, 0x53}, 0},
		{"free of glibc", []byte{0x48, 0x85, 0xff, 0x0f, 0x84, 0xbf, 0, 0, 0}, 3},
		{"posix_memalign of glibc", []byte{0x80, 0x3d, 1, 2, 3, 4, 0, 0x41, 0x54}, 7},
		{"malloc of jemalloc", []byte{0x48, 0x81, 0xff, 0, 0x10, 0, 0, 0x0f, 0x87, 0x93, 0, 0, 0}, 7},
		{"malloc of tcmalloc", []byte{0x48, 0x8b, 0x05, 0x59, 0xab, 0, 0, 0x48, 0x85, 0xc0, 0x75, 0x75}, 10},
		{"free of mimalloc", []byte{0x48, 0x89, 0xf9, 0x48, 0x85, 0xff, 0x74, 0x5d}, 6},
		{"malloc of mimalloc, which changes arguments", []byte{0x48, 0x8b, 0x05, 0x49, 0xb4, 0, 0, 0x48, 0x89, 0xfe, 0x74, 0x5d}, 0},
		{"marked", []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48}, 4},
		{"marked, and a test", []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 0x10}, 7},
		{"a test of something else", []byte{0x48, 0x85, 0xf6, 0x74, 0x10}, 0},
		{"marked, and what is not quick", []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x18}, 0},
		{"an argument is changed", []byte{0x48, 0x89, 0xf7, 0x55, 0x48}, 0},
		{"cut off", []byte{0xf3, 0x0f, 0x1e, 0xfa}, 0},
		{"nothing", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := append(make([]byte, 16), tt.code...)
			found, exits := []allocators.Function{{Program: allocators.Throws, Offset: 16}}, map[uint64][]uint64{16: {40}}
			withQuickEntries(bytes.NewReader(file), found, exits)
			require.Equal(t, []allocators.Function{{Program: allocators.Throws, Offset: 16 + tt.moved}}, found)
			require.Equal(t, map[uint64][]uint64{16 + tt.moved: {40}}, exits)
		})
	}
	found := []allocators.Function{{Program: allocators.Address, Offset: 1 << 40}}
	withQuickEntries(bytes.NewReader(nil), found, nil)
	require.Equal(t, []allocators.Function{{Program: allocators.Address, Offset: 1 << 40}}, found)
}

func TestIsEmulated(t *testing.T) {
	if machine != elf.EM_X86_64 {
		t.Skip("the code is that of another machine")
	}
	code := []byte{
		0x41, 0x54, 0x55, 0x48, // push %r12
		0x48, 0x85, 0xff, 0x74, // test %rdi,%rdi
		0x55, 0x48, 0x89, 0xe5, // push %rbp
		0x41, 0x8b, 0x07, 0xc3, // mov (%r15),%eax
		0xe9, 0x00, 0x00, 0x00, // jmp
	}
	r := bytes.NewReader(code)
	for offset, want := range map[uint64]bool{0: true, 4: false, 8: true, 12: false, 16: true, 1 << 40: false} {
		require.Equal(t, want, isEmulated(r, offset), offset)
	}
}

// jumpTo returns the code of a jump between two offsets. If marked is set, a landing instruction precedes the jump.
func jumpTo(from, to int, marked bool) []byte {
	var code []byte
	if machine == elf.EM_AARCH64 {
		if marked {
			code = binary.LittleEndian.AppendUint32(code, 0xd503245f)
			from += 4
		}
		return binary.LittleEndian.AppendUint32(code, 0x14000000|uint32((to-from)/4)&0x03ffffff)
	}
	if marked {
		code = append(code, 0xf3, 0x0f, 0x1e, 0xfa)
		from += 4
	}
	return binary.LittleEndian.AppendUint32(append(code, 0xe9), uint32(int32(to-from-5)))
}

func TestWithoutJumps(t *testing.T) {
	file := make([]byte, 256)
	copy(file[32:], jumpTo(32, 64, false))   // to a function
	copy(file[96:], jumpTo(96, 64, true))    // to the same function, after a landing instruction
	copy(file[128:], jumpTo(128, 200, true)) // to other code
	copy(file[160:], jumpTo(160, 200, true)) // to other code, from an operator
	r := bytes.NewReader(file)
	at := func(offsets ...uint64) (found []allocators.Function) {
		for _, o := range offsets {
			found = append(found, allocators.Function{Program: allocators.SizeFirst, Offset: o})
		}
		return found
	}
	require.Equal(t, at(64, 128), withoutJumps(r, at(32, 64, 96, 128, 160), map[uint64]bool{160: true}))
	require.Equal(t, at(32, 96), withoutJumps(r, at(32, 96), nil), "what they jump to has no probe")
	require.Equal(t, at(250, 1<<40), withoutJumps(r, at(250, 1<<40), nil), "outside of the file")
}
