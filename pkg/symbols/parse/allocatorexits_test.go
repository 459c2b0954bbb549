package parse

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// Allocators' operators throw if memory runs out. Either their exits are known, or they get no return probe.
func TestExitsOfLibraries(t *testing.T) {
	for _, pattern := range []string{"libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4"} {
		t.Run(pattern, func(t *testing.T) {
			f := library(t, pattern)
			found, exits, err := find(t, f)
			require.NoError(t, err)
			n := 0
			for _, fn := range found {
				if fn.Program != allocators.Throws {
					require.Empty(t, exits[fn.Offset])
					continue
				}
				n++
				require.NotEmpty(t, exits[fn.Offset], "%#x", fn.Offset)
				t.Logf("%#x: %d returns", fn.Offset, len(exits[fn.Offset]))
			}
			require.NotZero(t, n)
		})
	}
}

// A static program contains libstdc++'s operators, which call malloc.
func TestOperatorsThatCallMalloc(t *testing.T) {
	f := static(t, "c++", "main.cc", "int main(int n, char **) { int *volatile p = new int[n]; delete[] p; return 0; }\n")
	found, exits, err := find(t, f)
	require.NoError(t, err)
	require.Contains(t, found, allocators.Function{Program: allocators.SizeFirst, Offset: told(t, f)["malloc"]})
	for _, fn := range found {
		require.NotEqual(t, allocators.Throws, fn.Program)
	}
	require.Empty(t, exits)
}

// codeOf returns an ELF file with code at offsets.
func codeOf(parts map[uint64][]byte) *bytes.Reader {
	b := make([]byte, 0x2000)
	for i := range b {
		b[i] = 0x06 // invalid on x86; a plain instruction on arm64
	}
	copy(b, exampleFile{}.bytes())
	for at, code := range parts {
		copy(b[at:], code)
	}
	return bytes.NewReader(b)
}

func TestFollowAMD64(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("of another machine")
	}
	const ret, nop, ud2 = "\xc3", "\x90", "\x0f\x0b"
	for _, tt := range []struct {
		name  string
		code  map[uint64][]byte
		exits []uint64
		calls []uint64
		ok    bool
	}{
		{"a return", map[uint64][]byte{0x400: []byte(nop + ret)}, []uint64{0x401}, nil, true},
		{"both ways of a condition", map[uint64][]byte{0x400: []byte("\x74\x01" + ret + nop + ret)}, []uint64{0x402, 0x404}, nil, true},
		{"a loop", map[uint64][]byte{0x400: []byte(nop + "\x75\xfd" + ret)}, []uint64{0x403}, nil, true},
		{"a jump without end", map[uint64][]byte{0x400: []byte("\xeb\xfe")}, nil, nil, true},
		{"a call", map[uint64][]byte{0x400: []byte("\xe8\xfb\x00\x00\x00" + ret)}, []uint64{0x405}, []uint64{0x500}, true},
		{"a call by way of a jump", map[uint64][]byte{0x400: []byte("\xe8\xfb\x00\x00\x00" + ret), 0x500: jumpTo(0x500, 0x600, false)}, []uint64{0x405}, []uint64{0x500, 0x600}, true},
		{"a call at the end, which does not return", map[uint64][]byte{0x400: []byte("\x74\x01" + ret + "\xe9\xf3\x00\x00\x00"), 0x4fb: []byte("\xe8\x00\x01\x00\x00" + ret)}, []uint64{0x402}, []uint64{0x600}, true},
		{"an instruction within another", map[uint64][]byte{0x400: []byte("\x75\x01\xb8" + ret + ret + ret + ret + ret)}, nil, nil, false},
		{"the same, met in the other order", map[uint64][]byte{0x400: []byte("\xb8" + ret + ret + ret + ret + "\x75\xfa" + ret)}, nil, nil, false},
		{"into another function", map[uint64][]byte{0x400: jumpTo(0x400, 0x500, true), 0x500: []byte(ret)}, []uint64{0x500}, nil, true},
		{"a trap", map[uint64][]byte{0x400: []byte("\x74\x02" + ud2 + ret)}, []uint64{0x404}, nil, true},
		{"by a register", map[uint64][]byte{0x400: []byte("\x74\x02\xff\xe0" + ret)}, nil, nil, false},
		{"by memory that nobody has told of", map[uint64][]byte{0x400: []byte("\xff\x25\x00\x01\x00\x00")}, nil, nil, false},
		{"no instruction", map[uint64][]byte{0x400: {0x06}}, nil, nil, false},
		{"out of the file", map[uint64][]byte{0x400: jumpTo(0x400, 0x100000, false)}, nil, nil, false},
		{"in front of the file", map[uint64][]byte{0x400: jumpTo(0x400, -0x100000, false)}, nil, nil, false},
		{"longer than any", map[uint64][]byte{0x400: bytes.Repeat([]byte(nop), mostInstructions+1)}, nil, nil, false},
		{"too many returns", map[uint64][]byte{0x400: bytes.Repeat([]byte("\x74\x01"+ret), allocators.MaxExits+1)}, nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := codeOf(tt.code)
			f, err := openELF(newReader(t.Context(), r, r.Size(), allocatorLimits))
			require.NoError(t, err)
			w := way{code: codeReader{r: r}, slots: slots{f, mostRelocations}}
			require.Equal(t, tt.ok, w.follow(0x400, 0x100))
			if !tt.ok {
				return
			}
			require.ElementsMatch(t, tt.exits, w.exits)
			require.Len(t, w.calls, len(tt.calls))
			for _, to := range tt.calls {
				require.True(t, w.calls[to], "%#x", to)
			}
		})
	}
}

func TestDecodeARM64(t *testing.T) {
	const at = 0x1000
	for _, tt := range []struct {
		name string
		code []uint32
		want instruction
	}{
		{"ret", []uint32{0xd65f03c0}, instruction{kind: returns, length: 4}},
		{"retaa", []uint32{0xd65f0bff}, instruction{kind: returns, length: 4}},
		{"b forward", []uint32{0x14000004}, instruction{kind: branches, to: at + 16, length: 4}},
		{"b back", []uint32{0x17ffffff}, instruction{kind: branches, to: at - 4, length: 4}},
		{"bl", []uint32{0x94000004}, instruction{kind: calls, goesOn: true, to: at + 16, length: 4}},
		{"b.ne", []uint32{0x54000041}, instruction{kind: branches, goesOn: true, to: at + 8, length: 4}},
		{"cbz back", []uint32{0xb4ffffe0}, instruction{kind: branches, goesOn: true, to: at - 4, length: 4}},
		{"tbnz", []uint32{0x37000060}, instruction{kind: branches, goesOn: true, to: at + 12, length: 4}},
		{"blr", []uint32{0xd63f0040}, instruction{kind: plain, goesOn: true, length: 4}},
		{"blraaz", []uint32{0xd63f085f}, instruction{kind: plain, goesOn: true, length: 4}},
		{"br", []uint32{0xd61f0040}, instruction{}},
		{"braaz", []uint32{0xd61f085f}, instruction{}},
		{"brk", []uint32{0xd4207d00}, instruction{kind: leaves, length: 4}},
		{"udf", []uint32{0}, instruction{kind: leaves, length: 4}},
		{"mov", []uint32{0xaa0003e1}, instruction{kind: plain, goesOn: true, length: 4}},
		{"an entry of the linkage table", []uint32{0xb0000010, 0xf9400a11, 0x91004210, 0xd61f0220}, instruction{kind: slot, to: 0x2010, length: 4}},
		{"none", nil, instruction{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var code []byte
			for _, word := range tt.code {
				code = binary.LittleEndian.AppendUint32(code, word)
			}
			require.Equal(t, tt.want, decodeARM64(code, at))
		})
	}
}

// A program can map a file with any content.
func FuzzFollow(f *testing.F) {
	f.Add([]byte("\x74\x01\xc3\x90\xc3"))
	f.Add([]byte("\xff\x25\x00\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, code []byte) {
		r := codeOf(map[uint64][]byte{0x400: code})
		file, err := openELF(newReader(t.Context(), r, r.Size(), allocatorLimits))
		if err != nil {
			return
		}
		w := way{code: codeReader{r: r}, slots: slots{file, mostRelocations}}
		w.follow(0x400, 0x100)
		require.LessOrEqual(t, len(w.exits), allocators.MaxExits+1)
	})
}
