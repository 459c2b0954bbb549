package parse

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// The build ID of the test binary is the same as the toolchain reports.
func TestReadGo(t *testing.T) {
	path, err := os.Executable()
	require.NoError(t, err)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	info, err := ReadInfo(t.Context(), f, st.Size())
	require.NoError(t, err)
	require.Len(t, info.HTLHash, 32)

	out, err := exec.CommandContext(t.Context(), "go", "tool", "buildid", path).Output()
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(out)), info.Go)
	e, err := elf.NewFile(f)
	require.NoError(t, err)
	require.Equal(t, e.Section(".note.gnu.build-id") != nil, info.GNU != "")
	text := e.Section(".text")
	addr, ok := info.Virtual(text.Offset + 5)
	require.True(t, ok)
	require.Equal(t, text.Addr+5, addr)
	_, ok = info.Virtual(1 << 40)
	require.False(t, ok)
}

// image returns a small ELF file with one segment of notes.
func image(notes []byte) []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	b[32] = 64 // e_phoff
	b[54] = 56 // e_phentsize
	b[56] = 1  // e_phnum
	p := b[64:]
	p[0] = byte(elf.PT_NOTE)
	p[8] = byte(len(b))      // p_offset
	p[32] = byte(len(notes)) // p_filesz
	p[33] = byte(len(notes) >> 8)
	p[48] = 4 // p_align
	return append(b, notes...)
}

func note(name string, kind byte, desc string) []byte {
	b := []byte{byte(len(name)), 0, 0, 0, byte(len(desc)), 0, 0, 0, kind, 0, 0, 0}
	b = append(b, name...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	b = append(b, desc...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Package buildid tests the notes themselves.
func TestReadInfoNotes(t *testing.T) {
	b := image(slices.Concat(note("stapsdt\x00", 3, "x"), note("GNU\x00", 3, "\xab\xcd\xef"), note("Go\x00\x00", 4, "a/b/c/d")))
	info, err := ReadInfo(t.Context(), bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	info.HTLHash = ""
	require.Equal(t, buildid.Info{GNU: "abcdef", Go: "a/b/c/d"}, info)
}

// A file with wrong sizes is read within bounds.
func TestReadIsBounded(t *testing.T) {
	b := image(note("GNU\x00", 3, "\xab"))
	b[56], b[57] = 0xff, 0xff                           // e_phnum: more than in any real file
	copy(b[64+32:], "\xff\xff\xff\xff\xff\xff\xff\x7f") // p_filesz
	r := &counted{ReaderAt: bytes.NewReader(b)}
	info, err := ReadInfo(t.Context(), r, int64(len(b)))
	require.NoError(t, err)
	require.Empty(t, info.GNU)
	require.Less(t, r.bytes, int64(10<<10))
}

func TestReadFails(t *testing.T) {
	_, err := ReadInfo(t.Context(), broken{behind: -1}, 10)
	require.ErrorIs(t, err, ErrBroken)
}

func FuzzReadInfo(f *testing.F) {
	f.Add(image(note("GNU\x00", 3, "\xab")))
	f.Add([]byte("\x7fELF\x01\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := ReadInfo(t.Context(), bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)
		require.Len(t, info.HTLHash, 32)
		require.LessOrEqual(t, len(info.GNU), 128)
		require.LessOrEqual(t, len(info.Go), 256)
	})
}
