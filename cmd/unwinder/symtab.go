package main

import (
	"bytes"
	"path"
	"sort"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/process"
)

// withRubySymbols returns a view of a mapped file in which the profiler finds Ruby's stack. The profiler searches only libruby's
// .symtab for the variable ruby_current_ec. Distributions strip this section, but .dynsym also lists the variable.
func withRubySymbols(f process.ReadAtCloser, m *process.RawMapping) process.ReadAtCloser {
	if strings.HasPrefix(path.Base(m.Path), "libruby") {
		return dynsymAsSymtab(f)
	}
	return f
}

// These are the names of the two sections, with the bytes around them. Both texts have the same length.
const (
	dynsymName = "\x00.dynsym\x00"
	symtabName = "\x00.symtab\x00"
)

// dynsymAsSymtab returns a view of an ELF file without .symtab, in which .dynsym is called .symtab. Other files are returned
// unchanged.
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
	return &patched{f, []patch{{int64(names.Offset) + int64(at), symtabName}}}
}

// maxSectionNames limits the size of a file's section name table.
const maxSectionNames = 1 << 20

// patched is a file in which parts are replaced. The patches are in ascending order.
type patched struct {
	process.ReadAtCloser
	patches []patch
}

// patch is data that reads return instead of a part of the file.
type patch struct {
	at   int64
	with string
}

// ReadAt implements io.ReaderAt.
func (p *patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.ReadAtCloser.ReadAt(b, off)
	first := sort.Search(len(p.patches), func(i int) bool { return p.patches[i].at+int64(len(p.patches[i].with)) > off })
	for _, c := range p.patches[first:] {
		from, to := max(off, c.at), min(off+int64(n), c.at+int64(len(c.with)))
		if from >= to {
			break
		}
		copy(b[from-off:to-off], c.with[from-c.at:])
	}
	return n, err
}
