// Package find finds the functions of memory allocators in files, which are under the control of the programs that run them: it is for a
// process without rights.
package find

import (
	"bufio"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

// The prefixes of allocators that can be linked to a program under names of their own. _rjem_ is jemalloc in programs of Rust.
var prefixes = []string{"", "je_", "_rjem_", "tc_", "mi_"}

// functions are those that every allocator has.
var functions = map[string]allocators.Program{
	"malloc": allocators.SizeFirst, "valloc": allocators.SizeFirst, "pvalloc": allocators.SizeFirst,
	"mallocx":       allocators.SizeFirst, // jemalloc
	"aligned_alloc": allocators.SizeSecond, "memalign": allocators.SizeSecond,
	"posix_memalign": allocators.SizeThird,
	"calloc":         allocators.CountSize,
	"realloc":        allocators.AddressSize, "rallocx": allocators.AddressSize,
	"free": allocators.Address, "cfree": allocators.Address, "dallocx": allocators.Address, "sdallocx": allocators.Address,
}

// operatorsOf are C++'s, in files that have a malloc of their own: libstdc++'s call malloc.
var operatorsOf = map[string]allocators.Program{
	"_Znwm": allocators.Throws, "_Znam": allocators.Throws, "_ZnwmRKSt9nothrow_t": allocators.SizeFirst, "_ZnamRKSt9nothrow_t": allocators.SizeFirst,
	"_ZnwmSt11align_val_t": allocators.Throws, "_ZnamSt11align_val_t": allocators.Throws,
	"_ZnwmSt11align_val_tRKSt9nothrow_t": allocators.SizeFirst, "_ZnamSt11align_val_tRKSt9nothrow_t": allocators.SizeFirst,
	"_ZdlPv": allocators.Address, "_ZdaPv": allocators.Address, "_ZdlPvm": allocators.Address, "_ZdaPvm": allocators.Address,
	"_ZdlPvRKSt9nothrow_t": allocators.Address, "_ZdaPvRKSt9nothrow_t": allocators.Address,
	"_ZdlPvSt11align_val_t": allocators.Address, "_ZdaPvSt11align_val_t": allocators.Address,
	"_ZdlPvmSt11align_val_t": allocators.Address, "_ZdaPvmSt11align_val_t": allocators.Address,
}

const (
	// maxHeaders is how many bytes of a file's headers are read. They take memory, what follows does not.
	maxHeaders = 8 << 20
	// maxSymbols is how many bytes of symbols and their names are read of a file, and maxMeant how many symbols are looked at that
	// are called like an allocator's functions.
	maxSymbols = 1 << 30
	maxMeant   = 4096

	symbolSize = 24
	readAtOnce = 64 << 10
)

var errTooLarge = errors.New("its symbols are larger than the limit")

// machine is what this process runs on. Programs of other machines can be mapped, and 32-bit ones have other registers.
var machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// hottest are those that programs call most.
var hottest = func() map[string]bool {
	all := map[string]bool{"_Znwm": true}
	for _, prefix := range prefixes {
		all[prefix+"malloc"] = true
	}
	return all
}()

// Read finds the functions of the allocator that is in a file.
func Read(_ context.Context, file *os.File, _ int64) (any, error) {
	found, exits, err := find(file)
	if errors.Is(err, errTooLarge) {
		return allocators.Found{TooLarge: true}, nil
	}
	withQuickEntries(file, found, exits)
	all := allocators.Found{Functions: found, Exits: exits, Quick: map[uint64]bool{}}
	for _, fn := range found {
		if isEmulated(file, fn.Offset) {
			all.Quick[fn.Offset] = true
		}
	}
	return all, err
}

// find returns the functions of the allocator that is in a file, first those that programs call most, and where those return that throw,
// see exits; none is no error.
func find(r io.ReaderAt) (found []allocators.Function, ends map[uint64][]uint64, err error) {
	defer func() {
		if p := recover(); p != nil { // the file is under the control of the program
			found, ends, err = nil, nil, fmt.Errorf("reading its symbols: %v", p)
		}
	}()
	f, err := elf.NewFile(&bounded{r, maxHeaders})
	if err != nil {
		return nil, nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Machine != machine {
		return nil, nil, nil
	}
	all, err := meant(r, f)
	if err != nil {
		return nil, nil, err
	}
	own, operators, dear, sizes := false, map[uint64]bool{}, map[uint64]bool{}, map[uint64]uint64{}
	for _, s := range all {
		own = own || s.name == "malloc"
	}
	for _, s := range all {
		p, ok := programOf(s.name, own)
		if !ok {
			continue
		}
		if offset, ok := offsetOf(f, s.value); ok {
			found = append(found, allocators.Function{Program: p, Offset: offset})
			sizes[offset] = s.size
			if _, ok := operatorsOf[s.name]; ok {
				operators[offset] = true
			}
			if hottest[s.name] {
				dear[offset] = true
			}
		}
	}
	// One function can have several names. Where one of them throws, it does.
	slices.SortFunc(found, func(a, b allocators.Function) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), -cmp.Compare(a.Program/allocators.Throws, b.Program/allocators.Throws), cmp.Compare(a.Program, b.Program))
	})
	found = slices.CompactFunc(found, func(a, b allocators.Function) bool { return a.Offset == b.Offset })
	if len(found) > allocators.MaxFunctions {
		found = allocators.ByRank(found)
		slices.SortStableFunc(found, func(a, b allocators.Function) int { return first(dear[a.Offset], dear[b.Offset]) })
		found = found[:allocators.MaxFunctions]
		slices.SortFunc(found, func(a, b allocators.Function) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	found = withoutJumps(r, found, operators)
	found, ends = exits(r, f, found, sizes)
	slices.SortStableFunc(found, func(a, b allocators.Function) int { return first(dear[a.Offset], dear[b.Offset]) })
	return found, ends, nil
}

// first orders what is something before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// bounded is a file of which so many bytes can be read in all.
type bounded struct {
	r    io.ReaderAt
	left int
}

func (b *bounded) ReadAt(to []byte, at int64) (int, error) {
	if b.left -= len(to); b.left < 0 {
		return 0, errTooLarge
	}
	return b.r.ReadAt(to, at)
}

// symbol is a function that is called like one of an allocator.
type symbol struct {
	name        string
	value, size uint64
}

// meant returns the functions that are called like those of an allocator. It reads the symbols piece by piece: a program can
// have millions.
func meant(r io.ReaderAt, f *elf.File) ([]symbol, error) {
	var out []symbol
	left := uint64(maxSymbols)
	for _, s := range f.Sections {
		if s.Type != elf.SHT_SYMTAB && s.Type != elf.SHT_DYNSYM || s.Flags&elf.SHF_COMPRESSED != 0 || uint64(s.Link) >= uint64(len(f.Sections)) {
			continue
		}
		text := f.Sections[s.Link]
		if text.Type != elf.SHT_STRTAB || text.Flags&elf.SHF_COMPRESSED != 0 {
			continue
		}
		if s.Size > left || text.Size > left-s.Size {
			return nil, errTooLarge
		}
		left -= s.Size + text.Size
		places, err := placesOf(io.NewSectionReader(r, int64(text.Offset), int64(text.Size)))
		if err != nil {
			return nil, err
		}
		if len(places) == 0 {
			continue
		}
		entries := bufio.NewReaderSize(io.NewSectionReader(r, int64(s.Offset), int64(s.Size)), readAtOnce)
		var b [symbolSize]byte
		for len(out) < maxMeant {
			if _, err := io.ReadFull(entries, b[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			} else if err != nil {
				return nil, err
			}
			le := binary.LittleEndian
			name, ok := places[le.Uint32(b[:])]
			value := le.Uint64(b[8:])
			if ok && elf.ST_TYPE(b[4]) == elf.STT_FUNC && elf.SectionIndex(le.Uint16(b[6:])) != elf.SHN_UNDEF && value != 0 {
				out = append(out, symbol{name, value, le.Uint64(b[16:])})
			}
		}
	}
	return out, nil
}

// names are all that functions of allocators are called, and endings how long those are that end with a byte.
var names, endings = func() (map[string]string, [256][]int) {
	all, endings := map[string]string{}, [256][]int{}
	for name := range operatorsOf {
		all[name] = name
	}
	for _, prefix := range prefixes {
		for name := range functions {
			all[prefix+name] = prefix + name
		}
	}
	for name := range all {
		last := name[len(name)-1]
		if !slices.Contains(endings[last], len(name)) {
			endings[last] = append(endings[last], len(name))
		}
	}
	return all, endings
}()

// placesOf returns where in a table of names those of functions of allocators are. A name can be the end of a longer one.
func placesOf(r io.Reader) (map[uint32]string, error) {
	places := map[uint32]string{}
	text := bufio.NewReaderSize(r, readAtOnce)
	for at := 0; len(places) < maxMeant; {
		b, err := text.ReadSlice(0)
		if n := len(b) - 1; err == nil && n > 0 {
			for _, length := range endings[b[n-1]] {
				if length > n {
					continue
				}
				if name, ok := names[string(b[n-length:n])]; ok {
					places[uint32(at+n-length)] = name
				}
			}
		}
		at += len(b)
		switch {
		case errors.Is(err, io.EOF):
			return places, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
	return places, nil
}

func programOf(name string, own bool) (allocators.Program, bool) {
	for _, prefix := range prefixes {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			if p, ok := functions[rest]; ok {
				return p, true
			}
		}
	}
	if own {
		p, ok := operatorsOf[name]
		return p, ok
	}
	return 0, false
}

// offsetOf returns where in the file the code at an address is.
func offsetOf(f *elf.File, address uint64) (uint64, bool) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			offset := address - p.Vaddr + p.Off
			return offset, offset >= p.Off && offset <= math.MaxInt64
		}
	}
	return 0, false
}
