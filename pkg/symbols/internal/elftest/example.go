package elftest

import (
	"debug/elf"
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Mini is a compressed ELF file, as in .gnu_debugdata.
//
//go:embed testdata/mini.xz
var Mini []byte

// Small contains limits that hostile files soon exceed.
var Small = symtab.Limits{Symbols: 4096, Names: 1 << 20, Read: 16 << 20, Debug: 1 << 20, Memory: 64 << 20}

// Function returns the symbol of a global function in the first section.
func Function(name string, addr, size uint64) TestSymbol {
	return TestSymbol{name, elf.STT_FUNC, elf.STB_GLOBAL, 1, addr, size}
}

// Example returns a file with most features that package parse reads.
func Example() *TestELF {
	code := make([]byte, 0x100)
	copy(code[0x80:], []byte{0xff, 0x25, 0x10, 0, 0, 0}) // jmp *0x2096(%rip)
	relocation := binary.LittleEndian.AppendUint64(nil, 0x2096)
	relocation = binary.LittleEndian.AppendUint64(relocation, 1<<32|uint64(elf.R_X86_64_JMP_SLOT))
	relocation = binary.LittleEndian.AppendUint64(relocation, 0)
	e := new(TestELF).Code(".text", 0x1000, code)
	e.Symbols(".dynsym", elf.SHT_DYNSYM, TestSymbol{Name: "puts", Kind: elf.STT_FUNC, Bind: elf.STB_GLOBAL}, Function("exported", 0x1000, 0x10))
	stub := make([]byte, 16)
	copy(stub, []byte{0xff, 0x25, 0x90, 0, 0, 0}) // jmp *0x2096(%rip), from 0x2000
	e.Code(".plt", 0x2000, stub)
	e.Sections[len(e.Sections)-1].Entry = 16
	e.Add(TestSection{Name: ".rela.plt", Kind: elf.SHT_RELA, Flags: elf.SHF_ALLOC, Data: relocation, Entry: 24})
	e.Add(TestSection{Name: ".gnu_debugdata", Kind: elf.SHT_PROGBITS, Data: Mini})
	e.Add(TestSection{Name: ".gnu_debuglink", Kind: elf.SHT_PROGBITS, Data: []byte("a.debug\x00\x01\x02\x03\x04")})
	return e
}

// NoteID is the build ID of WithNote.
const NoteID = "00112233445566778899"

// WithNote returns a file with the build ID NoteID.
func WithNote() *TestELF {
	note := append([]byte{4, 0, 0, 0, 10, 0, 0, 0, 3, 0, 0, 0, 'G', 'N', 'U', 0}, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0, 0)
	return new(TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Add(TestSection{Name: ".note.gnu.build-id", Kind: elf.SHT_NOTE, Flags: elf.SHF_ALLOC, Data: note})
}

// GoProgram builds a program and returns its path. The source may import this module's packages.
func GoProgram(t *testing.T, source string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", "program"}, flags...), "main.go")...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(dir, "program")
}

// Printing is the source of a program that prints a line.
const Printing = `package main

func main() { println("hello") }
`
