package find

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// jumpTo is the code of a jump from an offset to another, behind what the machine marks targets of calls with if marked.
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
	copy(file[96:], jumpTo(96, 64, true))    // the same, marked
	copy(file[128:], jumpTo(128, 200, true)) // to something else
	copy(file[160:], jumpTo(160, 200, true)) // an operator's
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
