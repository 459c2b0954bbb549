package parse

import (
	"debug/elf"
	"errors"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// readTable reads a table without Go's functions.
func readTable(in *reader, limits symtab.Limits, debug symtab.DebugFiles) (*symtab.Table, error) {
	f, err := openELF(in)
	if err != nil {
		return nil, err
	}
	t := new(symtab.Table)
	if t.Golang, err = f.readGo(limits); err != nil {
		return nil, err
	}
	if t.Golang != nil && coversAll(t.Golang, f) { // .symtab has the same functions
		return t, nil
	}
	if err := addTable(t, f, elf.SHT_SYMTAB, symtab.SourceSymtab, limits); err != nil {
		return nil, err
	}
	if len(t.Layers) == 0 {
		if err := addSeparate(t, f, debug, limits); err != nil {
			return nil, err
		}
	}
	if len(t.Layers) == 0 || t.Layers[0].Source == symtab.SourceMiniDebug {
		if err := addTable(t, f, elf.SHT_DYNSYM, symtab.SourceDynsym, limits); err != nil {
			return nil, err
		}
	}
	// If stubs are malformed, too large or too slow to read, only their names are missing.
	if err := addStubs(t, f); err != nil && !errors.Is(err, symtab.ErrTooLarge) && !errors.Is(err, symtab.ErrMalformed) {
		return nil, err
	}
	addCut(t, f)
	return t, nil
}

// addCut sets Cut if f has debug information. The tables of Go programs already contain lines.
func addCut(t *symtab.Table, f *elfFile) {
	t.Cut = t.Cut || t.Golang == nil && len(t.Layers) > 0 && f.sectionNamed(".debug_info") != nil
}

// readLines reads the lines of code after base. If the file has no debug information, it uses the file's debug
// file.
func readLines(in *reader, limits symtab.Limits, debug symtab.DebugFiles, base uint64) (*symtab.Table, error) {
	f, err := openELF(in)
	if err != nil {
		return nil, err
	}
	if f.sectionNamed(".debug_info") == nil {
		var info buildid.Info
		f.addIDs(&info)
		other, file, err := f.findDebug(debug, info.GNU)
		if err != nil {
			return nil, err
		}
		if other != nil {
			defer file.Close()
			f = other
		}
	}
	return &symtab.Table{Lines: f.readPositions(base, limits)}, nil
}

// addSeparate adds symbols from the debug file or .gnu_debugdata.
func addSeparate(t *symtab.Table, f *elfFile, from symtab.DebugFiles, limits symtab.Limits) error {
	var info buildid.Info
	f.addIDs(&info)
	debug, file, err := f.findDebug(from, info.GNU)
	if err != nil {
		return err
	}
	if debug != nil {
		defer file.Close()
		if err := optional(addTable(t, debug, elf.SHT_SYMTAB, symtab.SourceDebugFile, limits)); err != nil {
			return err
		}
		if len(t.Layers) > 0 {
			addCut(t, debug)
			return nil
		}
	}
	if t.Golang == nil {
		t.Wanted = info.GNU
	}
	mini, err := f.miniDebug()
	if err != nil || mini == nil {
		return err
	}
	return optional(addTable(t, mini, elf.SHT_SYMTAB, symtab.SourceMiniDebug, limits))
}

// readDebugTable reads the symbols of a debug file.
func readDebugTable(in *reader, limits symtab.Limits) (*symtab.Table, error) {
	f, err := openELF(in)
	if err != nil {
		return nil, err
	}
	t := new(symtab.Table)
	if err := addTable(t, f, elf.SHT_SYMTAB, symtab.SourceDebugFile, limits); err != nil {
		return nil, err
	}
	if len(t.Layers) == 0 {
		return nil, symtab.ErrNoSymbols
	}
	addCut(t, f)
	return t, nil
}

// optional drops the error if a debug file or .gnu_debugdata is damaged. Such data counts as missing.
func optional(err error) error {
	if errors.Is(err, symtab.ErrMalformed) {
		return nil
	}
	return err
}

// addTable adds the symbol table in the section of the given kind. It names only addresses that have no name yet.
func addTable(t *symtab.Table, f *elfFile, kind elf.SectionType, source symtab.Source, limits symtab.Limits) error {
	var strings *section
	table := f.sectionOf(kind)
	if table != nil && int(table.link) < len(f.sections) {
		strings = &f.sections[table.link]
	} else if len(f.sections) == 0 && kind == elf.SHT_DYNSYM {
		var err error
		if table, strings, err = f.dynamicSymbols(); err != nil {
			return err
		}
	}
	if table == nil || strings == nil || table.kind == elf.SHT_NOBITS {
		return nil
	}
	symbols, err := f.readSymbols(table, limits)
	if err != nil {
		return err
	}
	return addSymbols(t, f, missing(t, symbols), strings, source, limits)
}

// missing removes, in place, the symbols whose first and last byte have a name, and returns the remaining symbols.
func missing(t *symtab.Table, symbols []symbol) []symbol {
	return slices.DeleteFunc(symbols, func(s symbol) bool {
		return s.size > 0 && t.Covers(s.addr) && t.Covers(s.addr+s.size-1)
	})
}
