package allocator

import (
	"bytes"
	"debug/elf"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEach(t *testing.T) {
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
	c := costs{emulated: time.Microsecond, stepped: 10 * time.Microsecond}
	functions := []function{{sizeFirst, 0}, {sizeFirst, 12}, {countSize, 8}, {addressSize, 4}, {sizeThird, 12}, {address, 4}}
	require.Equal(t, c.emulated, c.each(r, &file{functions: functions}, false), "malloc and calloc")
	require.Equal(t, (c.emulated+returnTraps*c.emulated+c.stepped)/3, c.each(r, &file{functions: functions}, true))
	require.Equal(t, c.stepped, c.each(r, &file{functions: functions[1:2]}, false))
	require.Zero(t, c.each(r, &file{functions: functions[5:]}, false), "nothing is watched")

	// The first function is malloc, which is called most: that others are cheap does not make it so.
	functions = []function{{sizeFirst, 4}, {sizeFirst, 0}, {countSize, 0}, {addressSize, 8}}
	require.Equal(t, c.stepped, c.each(r, &file{functions: functions}, false))
	functions = []function{{sizeFirst, 0}, {throws, 4}, {sizeFirst, 8}, {countSize, 0}, {addressSize, 8}}
	require.Equal(t, c.stepped, c.each(r, &file{functions: functions}, false), "operator new is like malloc")
}

// What is measured are functions that can be called.
func TestMeasured(t *testing.T) {
	emulated()
	stepped()
	require.NotZero(t, emulatedPC)
	require.NotEqual(t, emulatedPC, steppedPC)
	require.Less(t, measure(emulated), time.Second)
}
