package parse

import (
	"bufio"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// prefixes are the allocators' prefixes of function names. Rust programs use the prefix _rjem_ for jemalloc.
var prefixes = []string{"", "je_", "_rjem_", "tc_", "mi_"}

// allocatorFunctions are the functions of all allocators.
var allocatorFunctions = map[string]allocators.Program{
	"malloc": allocators.SizeFirst, "valloc": allocators.SizeFirst, "pvalloc": allocators.SizeFirst,
	"mallocx":       allocators.SizeFirst, // jemalloc
	"aligned_alloc": allocators.SizeSecond, "memalign": allocators.SizeSecond,
	"posix_memalign": allocators.SizeThird,
	"calloc":         allocators.CountSize,
	"realloc":        allocators.AddressSize, "rallocx": allocators.AddressSize,
	"free": allocators.Address, "cfree": allocators.Address, "dallocx": allocators.Address, "sdallocx": allocators.Address,
}

// operatorsOf are the C++ operators of files that define malloc. libstdc++'s operators are not needed, because they call malloc.
var operatorsOf = map[string]allocators.Program{
	"_Znwm": allocators.Throws, "_Znam": allocators.Throws, "_ZnwmRKSt9nothrow_t": allocators.SizeFirst, "_ZnamRKSt9nothrow_t": allocators.SizeFirst,
	"_ZnwmSt11align_val_t": allocators.Throws, "_ZnamSt11align_val_t": allocators.Throws,
	"_ZnwmSt11align_val_tRKSt9nothrow_t": allocators.SizeFirst, "_ZnamSt11align_val_tRKSt9nothrow_t": allocators.SizeFirst,
	"_ZdlPv": allocators.Address, "_ZdaPv": allocators.Address, "_ZdlPvm": allocators.Address, "_ZdaPvm": allocators.Address,
	"_ZdlPvRKSt9nothrow_t": allocators.Address, "_ZdaPvRKSt9nothrow_t": allocators.Address,
	"_ZdlPvSt11align_val_t": allocators.Address, "_ZdaPvSt11align_val_t": allocators.Address,
	"_ZdlPvmSt11align_val_t": allocators.Address, "_ZdaPvmSt11align_val_t": allocators.Address,
}

// allocatorLimits limits the search for a file's allocator functions, which mostly reads symbols and their names.
var allocatorLimits = symtab.Limits{Read: 1 << 30, Memory: 8 << 20}

const (
	// maxMeant limits how many symbols with an allocator function's name are checked.
	maxMeant   = 4096
	symbolSize = 24
)

// machine is this process's architecture. A process can map files for other architectures. 32-bit programs pass arguments in
// other registers.
var machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// readAllocator finds the allocator's functions in a file.
func readAllocator(ctx context.Context, r io.ReaderAt, size int64) (any, error) {
	found, exits, err := findAllocator(ctx, r, size)
	if errors.Is(err, symtab.ErrTooLarge) && !errors.Is(err, symtab.ErrTooSlow) {
		return allocators.Found{TooLarge: true}, nil
	}
	withQuickEntries(r, found, exits)
	all := allocators.Found{Functions: found, Exits: exits, Quick: map[uint64]bool{}}
	for _, fn := range found {
		if isEmulated(r, fn.Offset) {
			all.Quick[fn.Offset] = true
		}
	}
	return all, err
}

// findAllocator returns the allocator functions in a file, the most frequently called first. It also returns the exits of
// throwing functions, see exits. A missing allocator is not an error.
func findAllocator(ctx context.Context, r io.ReaderAt, size int64) (found []allocators.Function, ends map[uint64][]uint64, err error) {
	f, err := openELF(newReader(ctx, r, size, allocatorLimits))
	if err != nil {
		return nil, nil, err
	}
	if f.class != elf.ELFCLASS64 || f.machine != machine {
		return nil, nil, nil
	}
	all, err := f.allocatorSymbols()
	if err != nil {
		return nil, nil, err
	}
	own, operators, order, sizes := false, map[uint64]bool{}, map[uint64]int{}, map[uint64]uint64{}
	for _, s := range all {
		own = own || s.of == allocatorNames["malloc"]
	}
	for _, s := range all {
		if s.of.operator && !own {
			continue
		}
		if offset, ok := f.codeOffset(s.addr); ok {
			found = append(found, allocators.Function{Program: s.of.program, Offset: offset})
			sizes[offset] = s.size
			if s.of.operator {
				operators[offset] = true
			}
			if s.of.hot {
				order[offset] = -1
			}
		}
	}
	hotFirst := func(a, b allocators.Function) int { return cmp.Compare(order[a.Offset], order[b.Offset]) }
	// One function can have several names. If one name belongs to a throwing function, the function throws.
	slices.SortFunc(found, func(a, b allocators.Function) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), -cmp.Compare(a.Program/allocators.Throws, b.Program/allocators.Throws), cmp.Compare(a.Program, b.Program))
	})
	found = slices.CompactFunc(found, func(a, b allocators.Function) bool { return a.Offset == b.Offset })
	if len(found) > allocators.MaxFunctions {
		found = allocators.ByRank(found)
		slices.SortStableFunc(found, hotFirst)
		found = found[:allocators.MaxFunctions]
		slices.SortFunc(found, func(a, b allocators.Function) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	found = withoutJumps(r, found, operators)
	found, ends = exits(f, found, sizes)
	slices.SortStableFunc(found, hotFirst)
	return found, ends, nil
}

// allocatorSymbol is a function with the name of an allocator's function.
type allocatorSymbol struct {
	symbol
	of *allocatorFunction
}

// allocatorFunction is what is known about functions with a name.
type allocatorFunction struct {
	program  allocators.Program
	operator bool // of C++; only counts in files that define malloc
	hot      bool // among the most frequently called functions
}

// allocatorSymbols returns the symbols with an allocator function's name. It reads the symbols in chunks, because a program can
// have millions. It treats an inconsistent table as missing.
func (f *elfFile) allocatorSymbols() (out []allocatorSymbol, err error) {
	for i := range f.sections {
		s := &f.sections[i]
		if s.kind != elf.SHT_SYMTAB && s.kind != elf.SHT_DYNSYM || s.flags&elf.SHF_COMPRESSED != 0 || int(s.link) >= len(f.sections) {
			continue
		}
		text := &f.sections[s.link]
		if text.kind != elf.SHT_STRTAB || text.flags&elf.SHF_COMPRESSED != 0 {
			continue
		}
		places, err := placesOf(f.stream(text))
		if err == nil && len(places) > 0 {
			out, err = f.appendSymbols(out, s, places)
		}
		if err != nil && !errors.Is(err, symtab.ErrMalformed) {
			return nil, err
		}
	}
	return out, nil
}

// appendSymbols appends the table's functions whose names begin at the offsets in places.
func (f *elfFile) appendSymbols(out []allocatorSymbol, table *section, places map[uint32]*allocatorFunction) ([]allocatorSymbol, error) {
	entries := f.stream(table)
	var b [symbolSize]byte
	for len(out) < maxMeant {
		if _, err := io.ReadFull(entries, b[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		} else if err != nil {
			return out, err
		}
		of, ok := places[binary.LittleEndian.Uint32(b[:])]
		if !ok {
			continue
		}
		s, index, info := f.symbol(b[:])
		if elf.ST_TYPE(info) == elf.STT_FUNC && index != elf.SHN_UNDEF && s.addr != 0 {
			out = append(out, allocatorSymbol{s, of})
		}
	}
	return out, nil
}

// allocatorNames are all allocators' functions by name. endings holds the names' lengths by last byte.
var allocatorNames, endings = func() (map[string]*allocatorFunction, [256][]int) {
	all, endings := map[string]*allocatorFunction{}, [256][]int{}
	for name, program := range operatorsOf {
		all[name] = &allocatorFunction{program: program, operator: true, hot: name == "_Znwm"}
	}
	for _, prefix := range prefixes {
		for name, program := range allocatorFunctions {
			all[prefix+name] = &allocatorFunction{program: program, hot: name == "malloc"}
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

// placesOf returns allocators' functions by their names' offsets in a string table. A name can be the end of a longer string.
func placesOf(r io.Reader) (map[uint32]*allocatorFunction, error) {
	places := map[uint32]*allocatorFunction{}
	text := bufio.NewReader(r)
	for at := 0; len(places) < maxMeant; {
		b, err := text.ReadSlice(0)
		if n := len(b) - 1; err == nil && n > 0 {
			for _, length := range endings[b[n-1]] {
				if length > n {
					continue
				}
				if of, ok := allocatorNames[string(b[n-length:n])]; ok {
					places[uint32(at+n-length)] = of
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

// codeOffset returns the file offset of the code at an address.
func (f *elfFile) codeOffset(address uint64) (uint64, bool) {
	for _, p := range f.loads() {
		if p.flags&elf.PF_X != 0 && address >= p.addr && address-p.addr < p.fileSize {
			offset := address - p.addr + p.offset
			return offset, offset >= p.offset && offset <= math.MaxInt64
		}
	}
	return 0, false
}

// codeAddress returns the address of a file offset, if it is in code.
func (f *elfFile) codeAddress(offset uint64) (uint64, bool) {
	for _, p := range f.loads() {
		if p.flags&elf.PF_X != 0 && offset >= p.offset && offset-p.offset < p.fileSize {
			return offset - p.offset + p.addr, true
		}
	}
	return 0, false
}
