package stack

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestFunctionTable(t *testing.T) {
	t.Parallel()
	const text = `0000000000000000 A fixed_percpu_data
ffffffff81000000 T startup_64
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000070 t second
ffffffff81000070 T third
ffffffff81000070 t fourth
ffffffff81000100 W weak
ffffffff81000100 t __local
ffffffff81000180 D data
0000000000000000 T hidden

x
ffffffff81000140 T out_of_order
ffffffffc0000000 t in_module	[mod]
ffffffffc0201000 t bpf_prog_6deef7357e7b4530	[bpf]
ffffffffc0202000 t ftrace_trampoline	[__builtin__ftrace]
`
	image, err := readFunctionTable(strings.NewReader(text), (*kernelSymbol).ofImage)
	require.NoError(t, err)
	for addr, want := range map[uint64]string{
		0x1000:             "",
		0xffffffff80ffffff: "",
		0xffffffff81000000: "startup_64",
		0xffffffff8100006f: "startup_64",
		0xffffffff81000070: "third",
		0xffffffff81000100: "weak",
		0xffffffff81000140: "out_of_order",
		0xffffffff81000200: "out_of_order", // data is not code
		0xffffffffc0000010: "out_of_order", // modules have their own table
		0xffffffffffffffff: "out_of_order",
	} {
		require.Equal(t, want, image.name(addr, math.MaxUint64), "%#x", addr)
	}
	made, err := readFunctionTable(strings.NewReader(text), (*kernelSymbol).isGenerated)
	require.NoError(t, err)
	for addr, want := range map[uint64]string{
		0xffffffff81000000: "",
		0xffffffffc0000010: "",
		0xffffffffc0201010: "bpf_prog_6deef7357e7b4530",
		0xffffffffc0202000: "ftrace_trampoline",
		0xffffffffc0211fff: "ftrace_trampoline",
		0xffffffffc0212000: "", // may be newer code
	} {
		require.Equal(t, want, made.name(addr, generatedLimit), "%#x", addr)
	}

	_, err = readFunctionTable(iotest.ErrReader(os.ErrPermission), (*kernelSymbol).ofImage)
	require.ErrorIs(t, err, os.ErrPermission)
	_, err = readFunctionTable(strings.NewReader("0000000000000000 T _stext\n"), (*kernelSymbol).ofImage)
	require.ErrorIs(t, err, errHidden)
	empty, err := readFunctionTable(strings.NewReader(""), (*kernelSymbol).ofImage)
	require.NoError(t, err)
	require.Empty(t, empty.name(0xffffffff81000000, math.MaxUint64))
}

// TestSymbolsTakeNoMemory reads more lines than a Scanner's buffer can hold.
func TestSymbolsTakeNoMemory(t *testing.T) {
	text := strings.Repeat("ffffffff81000000 T _stext\nffffffffc0201000 t bpf_prog_1\t[bpf]\n", 1000)
	require.Less(t, testing.AllocsPerRun(5, func() {
		lines := 0
		err := eachSymbol(strings.NewReader(text), func(s kernelSymbol) bool {
			lines++
			return s.addr != 0
		})
		require.NoError(t, err)
		require.Equal(t, 2000, lines)
	}), 100.0)
}

// TestFunctionOutsideImage checks that an address outside the image gets no function of the image, even if other symbols are
// unreadable.
func TestFunctionOutsideImage(t *testing.T) {
	t.Parallel()
	const start, end, made = 0xffffffff81000000, 0xffffffff81001000, 0xffffffffc0201000
	table := func(addr uint64, name string) *functionTable {
		return &functionTable{addrs: []uint64{addr}, ends: []uint32{uint32(len(name))}, names: name}
	}
	image, generated := table(start+0x10, "last_of_image"), table(made, "bpf_prog_1")
	bounds := &KernelSymbols{Start: start, End: end}
	for name, c := range map[string]struct {
		kernel Kernel
		addr   uint64
		want   string
	}{
		"image":                         {Kernel{symbols: bounds, functions: image, generated: generated}, start + 0x20, "last_of_image"},
		"image alone":                   {Kernel{symbols: bounds, functions: image}, start + 0x20, "last_of_image"},
		"generated":                     {Kernel{symbols: bounds, functions: image, generated: generated}, made + 1, "bpf_prog_1"},
		"generated, which is not known": {Kernel{symbols: bounds, functions: image}, made + 1, ""},
		"neither":                       {Kernel{symbols: bounds, functions: image, generated: generated}, end + 1, ""},
		"no bounds":                     {Kernel{symbols: &KernelSymbols{}, functions: image, generated: generated}, start + 0x20, "last_of_image"},
		"no bounds, generated":          {Kernel{symbols: &KernelSymbols{}, functions: image, generated: generated}, made + 1, "bpf_prog_1"},
		"no bounds, far away":           {Kernel{symbols: &KernelSymbols{}, functions: image}, made + 1, ""},
		"nothing":                       {Kernel{symbols: bounds}, start + 0x20, ""},
	} {
		require.Equal(t, c.want, c.kernel.functionAt(c.addr), name)
	}
}
