package stack

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

func TestReadKallsyms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		start, end uint64
		err        string
	}{
		{
			name:  "a kernel that lists data",
			text:  "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff82208d88 T _etext\nffffffff837f8710 T _einittext\nffffffff84000000 B _end\nffffffffc0000000 t _stext\t[mod]\n",
			start: 0xffffffff81000000, end: 0xffffffff84000000,
		},
		{
			name:  "a kernel that lists functions",
			text:  "ffffffff81000000 T _stext\nffffffff82208d88 T _etext\nffffffff837f8710 T _einittext\nffffffffc0201000 t ftrace_trampoline\t[__builtin__ftrace]\n",
			start: 0xffffffff81000000, end: 0xffffffff837f8710,
		},
		{name: "lines that are none", text: "\n \nx\nffffffff81000000 T _stext\nffffffff82208d88 T _etext", start: 0xffffffff81000000, end: 0xffffffff82208d88},
		{name: "hidden", text: "0000000000000000 T _stext\n0000000000000000 T _etext\n", err: "CAP_SYSLOG"},
		{name: "nothing", text: "", err: "CAP_SYSLOG"},
		{name: "no end", text: "ffffffff81000000 T _stext\n", err: "the end of the kernel's image is unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s KernelSymbols
			err := s.readKallsyms(strings.NewReader(tt.text))
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, KernelSymbols{Start: tt.start, End: tt.end}, s)
		})
	}
	var s KernelSymbols
	require.ErrorIs(t, s.readKallsyms(iotest.ErrReader(os.ErrPermission)), os.ErrPermission)
}

// note writes an ELF note.
func note(name string, kind uint32, desc []byte) []byte {
	var b []byte
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(desc)))
	b = binary.NativeEndian.AppendUint32(b, kind)
	pad := func(s []byte) []byte { return append(s, make([]byte, -len(s)&3)...) }
	b = append(b, pad([]byte(name))...)
	return append(b, pad(desc)...)
}

func TestReadBuildIDNote(t *testing.T) {
	t.Parallel()
	id, err := hex.DecodeString(testBuildID)
	require.NoError(t, err)
	gnu := note("GNU\x00", 3, id)
	tests := []struct {
		name string
		in   []byte
		id   string
	}{
		{"alone", gnu, testBuildID},
		{"after others", bytes.Join([][]byte{note("Linux\x00", 0x100, []byte("6.1\x00x")), note("Xen\x00", 18, make([]byte, 8)), note("GNU\x00", 5, []byte{1}), gnu}, nil), testBuildID},
		{"none", note("Linux\x00", 0x100, []byte("6.1")), ""},
		{"cut", gnu[:len(gnu)-1], ""},
		{"lengths that overflow", bytes.Repeat([]byte{0xff}, 64), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			id, err := readBuildIDNote(bytes.NewReader(tt.in))
			require.Equal(t, tt.id, id)
			require.Equal(t, tt.id == "", err != nil)
		})
	}
	_, err = readBuildIDNote(iotest.ErrReader(os.ErrPermission))
	require.ErrorIs(t, err, os.ErrPermission)
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, readFile(filepath.Join(t.TempDir(), "none"), nil), os.ErrNotExist)
}

func TestModules(t *testing.T) {
	t.Parallel()
	const id = "0102030405060708090a0b0c0d0e0f1011121314"
	raw, err := hex.DecodeString(id)
	require.NoError(t, err)
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("sys/module/nft/notes/.note.gnu.build-id", string(note("GNU\x00", 3, raw)))
	// The modules and their symbols are in the order of loading.
	write("proc/kallsyms", `ffffffff81000000 T _stext
ffffffffc0a00100 t xfs_read	[xfs]
ffffffffc0a00000 t xfs_init	[xfs]
ffffffffc0a00080 d xfs_data	[xfs]
ffffffffc0100010 T nft_do_chain	[nft]
ffffffffc0000000 T nft_elsewhere	[nft]
ffffffffc0201000 t ftrace_trampoline	[__builtin__ftrace]
x	[nft]
	[nft]
`)
	const list = "xfs 8192 0 - Live 0xffffffffc0a00000\nnft 4096 2 xfs,ext4, Live 0xffffffffc0100000 (OE)\n\nshort\n"
	write("proc/modules", list)
	table := &moduleTable{root: root}

	modules, ok := table.load()
	require.True(t, ok)
	require.Equal(t, []module{
		{
			name: "nft", start: 0xffffffffc0100000, end: 0xffffffffc0101000,
			mapping:   profile.Mapping{File: "[nft]", GNUBuildID: id},
			functions: modules[0].functions,
		},
		{
			name: "xfs", start: 0xffffffffc0a00000, end: 0xffffffffc0a02000,
			functions: modules[0].functions,
		},
	}, modules)
	for addr, want := range map[uint64]*module{
		0:                  nil,
		0xffffffffc00fffff: nil,
		0xffffffffc0100000: &modules[0],
		0xffffffffc0100fff: &modules[0],
		0xffffffffc0101000: nil,
		0xffffffffc0a01fff: &modules[1],
		0xffffffffffffffff: nil,
	} {
		require.Same(t, want, findModule(modules, addr), "%#x", addr)
	}
	require.Equal(t, []uint64{0xffffffffc0000000, 0xffffffffc0100010, 0xffffffffc0a00000, 0xffffffffc0a00100}, modules[0].functions.addrs, "neither data nor generated code")
	require.Empty(t, modules[0].function(0xffffffffc010000f))
	require.Equal(t, "nft_do_chain", modules[0].function(0xffffffffc0100010))
	require.Equal(t, "nft_do_chain", modules[0].function(0xffffffffc0100fff))
	require.Equal(t, "xfs_init", modules[1].function(0xffffffffc0a000ff))
	require.Equal(t, "xfs_read", modules[1].function(0xffffffffc0a01fff))

	// The same modules are not read again, whoever uses them.
	require.NoError(t, os.Remove(filepath.Join(root, "proc/kallsyms")))
	write("proc/modules", strings.Replace(list, "8192 0", "8192 7", 1))
	again, ok := table.load()
	require.True(t, ok)
	require.Same(t, &modules[0], &again[0])

	write("proc/modules", "nft 4096 0 - Live 0xffffffffc0300000\n")
	_, ok = table.load()
	require.False(t, ok, "modules without symbols")
	write("proc/modules", "nft 4096 0 - Live 0x0000000000000000\n")
	_, ok = table.load()
	require.False(t, ok, "addresses are hidden")

	modules, ok = (&moduleTable{root: t.TempDir()}).load()
	require.True(t, ok, "a kernel without modules")
	require.Empty(t, modules)

	k := NewKernel(KernelOptions{Symbols: testSymbols()})
	require.False(t, k.knowsModules, "symbols that were not read from a running kernel")
	k = NewKernel(KernelOptions{Symbols: &KernelSymbols{modules: table}})
	require.False(t, k.knowsModules, "the image is not known")
	write("proc/modules", list)
	write("proc/kallsyms", "")
	symbols := testSymbols()
	symbols.modules = table
	k = NewKernel(KernelOptions{Symbols: symbols})
	require.True(t, k.knowsModules)
	require.Len(t, k.modules, 2)
	write("proc/modules", "nft 4096 0 - Live 0x0000000000000000\n")
	table.looked = time.Time{}
	k = NewKernel(KernelOptions{Symbols: symbols})
	require.False(t, k.knowsModules)
	require.Empty(t, k.modules, "a list that can be outdated")
	write("proc/modules", list)
	table.looked = time.Time{}
	k.refresh()
	require.Len(t, k.modules, 2, "the addresses can be read again")
}

// TestLoadKernelSymbols checks that there is an error exactly if data is missing, whatever this kernel permits.
func TestLoadKernelSymbols(t *testing.T) {
	t.Parallel()
	s, err := LoadKernelSymbols()
	require.NotNil(t, s)
	require.Equal(t, s.Start == 0 || s.BuildID == "", err != nil, "%v", errors.Unwrap(err))
	require.GreaterOrEqual(t, s.End, s.Start)
}
