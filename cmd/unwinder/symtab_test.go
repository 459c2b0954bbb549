package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
)

// TestDynsymAsSymtab reads this machine's C library, which has no .symtab, through the view.
func TestDynsymAsSymtab(t *testing.T) {
	libraries, err := filepath.Glob("/lib/*/libc.so.6")
	if err != nil || len(libraries) == 0 {
		t.Skip("no C library where Debian has it")
	}
	f, err := os.Open(libraries[0])
	require.NoError(t, err)
	defer f.Close()
	has := func(r io.ReaderAt) bool {
		elf, err := pfelf.NewFile(r, 0, false)
		require.NoError(t, err)
		defer elf.Close()
		found := false
		_ = elf.VisitSymbols(func(s libpf.Symbol) bool { // it fails without the section
			found = s.Name == "malloc" && s.Address != 0
			return !found
		})
		return found
	}
	if has(f) {
		t.Skip("the C library has a .symtab")
	}
	view := dynsymAsSymtab(f)
	assert.True(t, has(view), "no symbol in the view's .symtab")
	assert.Same(t, view, dynsymAsSymtab(view), "a view of a file that has a .symtab")
}

func TestPatched(t *testing.T) {
	p := &patched{ReadAtCloser: readAtCloser{bytes.NewReader([]byte("0123456789"))}, patches: []patch{{1, "1"}, {4, "ab"}, {6, "c"}}}
	const want = "0123abc789"
	for from := range len(want) {
		for to := from; to <= len(want); to++ {
			b := make([]byte, to-from)
			n, err := p.ReadAt(b, int64(from))
			assert.NoError(t, err)
			assert.Equal(t, want[from:to], string(b[:n]), "%d to %d", from, to)
		}
	}
	b := make([]byte, 8)
	n, err := p.ReadAt(b, 5)
	assert.ErrorIs(t, err, io.EOF, "past the end")
	assert.Equal(t, want[5:], string(b[:n]))
}

type readAtCloser struct{ io.ReaderAt }

func (readAtCloser) Close() error { return nil }
