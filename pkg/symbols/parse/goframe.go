package parse

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// GoLeaves lists a Go program's functions that have no stack frame, because they call nothing. Unwinding with frame pointers
// misses their callers.
type GoLeaves struct {
	Functions []GoLeaf
	// Assembly is the index of an assembly file in the file table.
	Assembly uint32
}

// GoLeaf is a function of GoLeaves.
type GoLeaf struct {
	// UnitAt is the file offset of a four-byte number in the function table. This number is the file table's index at which the
	// files of the function's compilation unit begin. File is the function's first file, counted from there.
	UnitAt uint64
	File   int32
}

// ReadGoLeaves reads a file of size bytes. It returns no leaves if the file is not a Go program or contains no assembly.
func ReadGoLeaves(ctx context.Context, r io.ReaderAt, size int64, limits symtab.Limits) (leaves GoLeaves, err error) {
	f, err := openELF(newReader(ctx, r, size, limits))
	if err != nil {
		return leaves, err
	}
	t, err := f.readGo(limits)
	if err != nil || t == nil || t.Version == symtab.Go116 || t.End-t.Offset > uint64(limits.Names) {
		return leaves, err
	}
	table := make([]byte, t.End-t.Offset)
	if err := f.at(table, t.Offset); err != nil {
		return leaves, err
	}
	all := *f.reader
	all.r = inMemory{f.r, int64(t.Offset), table}
	g := &goReader{reader: &all, GoPlace: &t.GoPlace}
	if leaves.Assembly, err = g.assembly(); err != nil || leaves.Assembly == 0 {
		return GoLeaves{}, err
	}
	all.left = &symtab.Budget{Read: limits.Read, Memory: limits.Memory} // only memory from here on
	for i := range len(t.Start) - 1 {
		leaf, ok, err := g.leaf(uint64(i))
		if err != nil && !errors.Is(err, errGoFunc) && !errors.Is(err, symtab.ErrMalformed) {
			return GoLeaves{}, err
		}
		if ok {
			leaves.Functions = append(leaves.Functions, leaf)
		}
	}
	return leaves, nil
}

// assembly returns the index of the first assembly file in the file table, or 0.
func (r *goReader) assembly() (uint32, error) {
	for i := uint64(1); 4*i < r.FileNames-r.Units; i++ {
		b, err := r.some(r.Units, r.FileNames, 4*i, 4)
		if err != nil || len(b) < 4 {
			return 0, err
		}
		at := binary.LittleEndian.Uint32(b)
		if at == 1<<32-1 {
			continue // no function uses it
		}
		name, err := r.text(r.FileNames, r.Pctab, uint64(at), symtab.MaxPath)
		if errors.Is(err, errGoFunc) {
			continue
		}
		if err != nil || strings.HasSuffix(name, ".s") {
			return uint32(i), err
		}
	}
	return 0, nil
}

// leaf reads just enough of the i-th function to decide whether the function is a leaf.
func (r *goReader) leaf(i uint64) (leaf GoLeaf, ok bool, err error) {
	const fields = 4 * 9
	b, at, err := r.record(i, fields, fields)
	if err != nil {
		return leaf, false, err
	}
	depths, files := binary.LittleEndian.Uint32(b[4*4:]), binary.LittleEndian.Uint32(b[4*5:])
	if depths == 0 || files == 0 {
		return leaf, false, nil
	}
	deepest, err := r.first(depths, 2)
	if err != nil || len(deepest) != 1 || deepest[0] != 0 {
		return leaf, false, err
	}
	first, err := r.first(files, 1)
	if err != nil || len(first) == 0 {
		return leaf, false, err
	}
	return GoLeaf{UnitAt: r.Offset + r.Program + at + 4*8, File: first[0]}, true, nil
}

// first returns at most n values from the start of a table.
func (r *goReader) first(off uint32, n int) (values []int32, err error) {
	b, err := r.some(r.Pctab, r.Program, uint64(off), 20*n)
	if err != nil {
		return nil, err
	}
	symtab.GoValues(b, uint32(r.Quantum), symtab.GoStart, func(now symtab.GoResume) bool {
		values = append(values, now.Value)
		return len(values) < n
	})
	return values, nil
}
