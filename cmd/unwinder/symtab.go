package main

import (
	"bytes"
	"path"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/process"
)

// withRubySymbols returns a view of a mapped file in which the profiler finds Ruby's stack. That is by the variable ruby_current_ec, which
// it looks for in libruby's .symtab alone. Distributions strip that section off; the variable is in .dynsym as well.
func withRubySymbols(f process.ReadAtCloser, m *process.RawMapping) process.ReadAtCloser {
	if strings.HasPrefix(path.Base(m.Path), "libruby") {
		return dynsymAsSymtab(f)
	}
	return f
}

// The names of the two sections, which are equally long, with the ends of those around.
const (
	dynsymName = "\x00.dynsym\x00"
	symtabName = "\x00.symtab\x00"
)

// dynsymAsSymtab returns a view of an ELF file without .symtab in which .dynsym is called so; of any other file, that file.
func dynsymAsSymtab(f process.ReadAtCloser) process.ReadAtCloser {
	elf, err := pfelf.NewFile(f, 0, false)
	if err != nil {
		return f
	}
	defer elf.Close() // f stays open
	if elf.LoadSections() != nil || elf.Section(".symtab") != nil {
		return f
	}
	names := elf.Section(".shstrtab")
	if names == nil {
		return f
	}
	text, err := names.Data(maxSectionNames)
	if err != nil {
		return f
	}
	at := bytes.Index(text, []byte(dynsymName))
	if at < 0 {
		return f
	}
	return &patched{ReadAtCloser: f, at: int64(names.Offset) + int64(at), with: symtabName}
}

// maxSectionNames is how long the names of a file's sections may be together.
const maxSectionNames = 1 << 20

// patched is a file that reads differently at one place.
type patched struct {
	process.ReadAtCloser
	at   int64
	with string
}

// ReadAt implements io.ReaderAt.
func (p *patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.ReadAtCloser.ReadAt(b, off)
	from, to := max(off, p.at), min(off+int64(n), p.at+int64(len(p.with)))
	if from < to {
		copy(b[from-off:to-off], p.with[from-p.at:])
	}
	return n, err
}
