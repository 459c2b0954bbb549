package find

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/stretchr/testify/require"
)

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
