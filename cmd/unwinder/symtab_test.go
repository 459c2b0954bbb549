package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

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
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	has := func(r io.ReaderAt) bool {
		elf, err := pfelf.NewFile(r, 0, false)
		if err != nil {
			t.Fatal(err)
		}
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
	if !has(view) {
		t.Error("no symbol in the view's .symtab")
	}
	if dynsymAsSymtab(view) != view {
		t.Error("a view of a file that has a .symtab")
	}
}

func TestPatched(t *testing.T) {
	p := &patched{ReadAtCloser: readAtCloser{bytes.NewReader([]byte("0123456789"))}, patches: []patch{{1, "1"}, {4, "ab"}, {6, "c"}}}
	const want = "0123abc789"
	for from := range len(want) {
		for to := from; to <= len(want); to++ {
			b := make([]byte, to-from)
			if n, err := p.ReadAt(b, int64(from)); err != nil || string(b[:n]) != want[from:to] {
				t.Errorf("%d to %d: %q, %v", from, to, b[:n], err)
			}
		}
	}
	b := make([]byte, 8)
	if n, err := p.ReadAt(b, 5); n != 5 || !errors.Is(err, io.EOF) || string(b[:n]) != want[5:] {
		t.Errorf("past the end: %q, %v", b[:n], err)
	}
}

type readAtCloser struct{ io.ReaderAt }

func (readAtCloser) Close() error { return nil }
