package cfi

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var twoFunctions = []exampleFunction{
	{0x401000, 0x20, program([]byte{cfaAdvanceLoc | 1, cfaDefCFAOffset, 16, cfaOffset | 6, 2, cfaAdvanceLoc | 3, cfaDefCFARegister, 6})},
	{0x401040, 0x10, nil},
}

// However a file leads to its rules, they are the same.
func TestRead(t *testing.T) {
	for name, change := range map[string]func(*example){
		"all":         func(*example) {},
		"no sections": func(e *example) { e.noSections = true },
		"no segments": func(e *example) { e.noSegments = true },
		"no index":    func(e *example) { e.noIndex = true },
		"no index and no sections": func(e *example) {
			e.noIndex, e.noSections, e.padding = true, true, 5000
		},
		"padded":            func(e *example) { e.noSections, e.padding = true, 5000 },
		"old":               func(e *example) { e.augmentation = "" },
		"in another order":  func(e *example) { e.functions = []exampleFunction{twoFunctions[1], twoFunctions[0]} },
		"of a language":     func(e *example) { e.augmentation, e.encodings = "zPLR", []byte{0x9b, 1, 2, 3, 4, 0x1b, 0x1b} },
		"of a small number": func(e *example) { e.functions = twoFunctions[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			e := amd64Example(twoFunctions...)
			change(&e)
			table := e.read(t)
			require.Equal(t, len(e.functions), table.Functions())
			for address, want := range map[uint64]string{
				0x400fff: "", 0x401000: "cfa=rsp+8 ra=c-8", 0x401001: "cfa=rsp+16 rbp=c-16 ra=c-8", 0x401003: "cfa=rsp+16 rbp=c-16 ra=c-8",
				0x401004: "cfa=rbp+16 rbp=c-16 ra=c-8", 0x40101f: "cfa=rbp+16 rbp=c-16 ra=c-8", 0x401020: "", 0x40103f: "",
			} {
				require.Equal(t, want, table.Describe(address), "%#x", address)
			}
			if len(e.functions) > 1 {
				require.Equal(t, "cfa=rsp+8 ra=c-8", table.Describe(0x40104f))
			}
			require.Less(t, table.Bytes(), int64(12<<10))
		})
	}
}

// Where functions overlap, one that covers the address is found.
func TestOverlap(t *testing.T) {
	table := amd64Example(exampleFunction{0x401000, 0x100, []byte{cfaDefCFAOffset, 24}}, exampleFunction{0x401010, 0x10, nil}).read(t)
	require.Equal(t, "cfa=rsp+24 ra=c-8", table.Describe(0x401000))
	require.Equal(t, "cfa=rsp+8 ra=c-8", table.Describe(0x401010))
	require.Equal(t, "cfa=rsp+24 ra=c-8", table.Describe(0x401020))
}

// A state that the instructions of all functions remember is none that one of them can restore.
func TestRememberedInCommon(t *testing.T) {
	e := amd64Example(exampleFunction{0x401000, 0x10, []byte{cfaRestoreState}}, exampleFunction{0x401010, 0x10, nil})
	e.common = append(e.common, cfaRememberState)
	table := e.read(t)
	require.Empty(t, table.Describe(0x401000))
	require.Equal(t, "cfa=rsp+8 ra=c-8", table.Describe(0x401010))
}

// What is not understood is no rule, and no wrong one.
func TestRefused(t *testing.T) {
	for name, e := range map[string]example{
		"augmentation":     {machine: amd64Example().machine, augmentation: "eh", functions: twoFunctions},
		"unknown letter":   {machine: amd64Example().machine, augmentation: "zRX", encodings: []byte{0x1b, 0}, common: amd64Example().common, functions: twoFunctions},
		"indirect pointer": {machine: amd64Example().machine, augmentation: "zR", encodings: []byte{0x9b}, common: amd64Example().common, functions: twoFunctions},
		"data relative":    {machine: amd64Example().machine, augmentation: "zR", encodings: []byte{0x3b}, common: amd64Example().common, functions: twoFunctions},
	} {
		t.Run(name, func(t *testing.T) {
			e.noIndex = true
			_, err := readBytes(e.bytes(), Limits{})
			require.ErrorIs(t, err, ErrNone)
			e.noIndex = false
			table, err := readBytes(e.bytes(), Limits{})
			if err == nil {
				require.Empty(t, table.Describe(0x401000))
			}
		})
	}
}

// The errors say what is wrong.
func TestErrors(t *testing.T) {
	e := amd64Example(twoFunctions...)
	_, err := readBytes([]byte("#!/bin/sh\n"), Limits{})
	require.ErrorIs(t, err, ErrNotELF)
	e.machine = 40 // 32-bit arm
	_, err = readBytes(e.bytes(), Limits{})
	require.ErrorIs(t, err, ErrNotELF)
	e = amd64Example(twoFunctions...)
	_, err = readBytes(e.bytes(), Limits{Bytes: 32, Entries: 100})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = readBytes(e.bytes(), Limits{Bytes: 1 << 20, Entries: 1})
	require.ErrorIs(t, err, ErrTooLarge)
	e.noIndex = true
	_, err = readBytes(e.bytes(), Limits{Bytes: 1 << 20, Entries: 1})
	require.ErrorIs(t, err, ErrTooLarge)
	e.noSegments, e.noSections = true, true
	_, err = readBytes(e.bytes(), Limits{})
	require.ErrorIs(t, err, ErrNone)
	b := amd64Example(twoFunctions...).bytes()
	binary.LittleEndian.PutUint16(b[56:], 60000)
	_, err = readBytes(b, Limits{})
	require.ErrorIs(t, err, ErrMalformed)
	_, err = readBytes(nil, Limits{})
	require.ErrorIs(t, err, ErrNotELF)
}

// A file that is cut off anywhere, or has any one of its bytes changed, is read or refused, and what is read answers.
func TestDamaged(t *testing.T) {
	e := amd64Example(twoFunctions...)
	whole := e.bytes()
	use := func(b []byte) {
		if table, err := readBytes(b, Limits{}); err == nil {
			for address := uint64(0x400ff0); address < 0x401060; address += 5 {
				table.Describe(address)
				stepAnyhow(table, address)
			}
		}
	}
	for n := 0; n < len(whole); n += 1 + n%7 {
		use(whole[:n])
	}
	for i := range whole {
		if i > 300 && i < exampleIndex || i > exampleIndex+64 && i < exampleFrames {
			continue
		}
		for _, v := range []byte{0, 0xff, whole[i] ^ 0x80, whole[i] + 1} {
			b := append([]byte{}, whole...)
			b[i] = v
			use(b)
		}
	}
}

// sparse is a file of which all but the beginning is zeros, and whose size is what somebody says.
type sparse struct {
	begin []byte
	most  int // the largest read
}

func (s *sparse) ReadAt(b []byte, off int64) (int, error) {
	s.most = max(s.most, len(b))
	clear(b)
	if off < int64(len(s.begin)) {
		copy(b, s.begin[off:])
	}
	return len(b), nil
}

// Who says that there is a gigabyte of something does not make anybody read it.
func TestHugeClaims(t *testing.T) {
	le := binary.LittleEndian
	for name, damage := range map[string]func(b []byte){
		"index":      func(b []byte) { le.PutUint64(b[64+segmentSize+32:], 1<<30) },
		"functions":  func(b []byte) { le.PutUint32(b[exampleIndex+8:], 1<<30) },
		"both":       func(b []byte) { le.PutUint64(b[64+segmentSize+32:], 1<<30); le.PutUint32(b[exampleIndex+8:], 1<<27) },
		"rules":      func(b []byte) { le.PutUint64(b[le.Uint64(b[40:])+sectionSize+32:], 1<<40) },
		"a function": func(b []byte) { clear(b[40:48]); le.PutUint32(b[exampleFrames+24:], 1<<30) },
		"names": func(b []byte) {
			clear(b[32:40])
			clear(b[56:58])
			le.PutUint64(b[le.Uint64(b[40:])+2*sectionSize+32:], 1<<40)
		},
		"segment": func(b []byte) {
			clear(b[40:48])
			le.PutUint64(b[64+32:], 1<<40)
			b[exampleIndex+2], b[exampleIndex+3] = peOmit, peOmit
			le.PutUint32(b[exampleFrames:], 1<<31)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := amd64Example(twoFunctions...).bytes()
			damage(b)
			file := &sparse{begin: b}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			table, err := Read(file, 1<<40, Limits{Bytes: 1 << 20, Entries: 10_000})
			runtime.ReadMemStats(&after)
			require.LessOrEqual(t, file.most, 1<<20)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
			if err == nil {
				require.LessOrEqual(t, table.Bytes(), int64(2<<20))
			}
		})
	}
}
