package symbols

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// GoLeaves are the functions of a Go program that make no frame on the stack, as they call nothing. Whoever follows frame pointers
// misses the callers of these.
type GoLeaves struct {
	Functions []GoLeaf
	// Assembly is where the table of files has one in assembly.
	Assembly uint32
	Order    binary.ByteOrder
}

// GoLeaf is one of GoLeaves.
type GoLeaf struct {
	// UnitAt is the offset in the file at which the table of functions has, in four bytes, where the files of the function's compilation
	// unit begin in the table of files. File is the number there of the function's first file.
	UnitAt uint64
	File   int32
}

// ReadGoLeaves reads a file of that size in bytes. A file that is no Go program, or one without assembly, has none.
func ReadGoLeaves(ctx context.Context, r io.ReaderAt, size int64, limits Limits) (leaves GoLeaves, err error) {
	f, err := openELF(newReader(ctx, r, size, Reading{Limits: limits}))
	if err != nil {
		return leaves, err
	}
	t, err := f.readGo(limits)
	if err != nil || t == nil || t.version == go116 || t.end-t.offset > uint64(limits.Names) {
		return leaves, err
	}
	table := make([]byte, t.end-t.offset)
	if err := f.at(table, t.offset); err != nil {
		return leaves, err
	}
	all := *f.reader
	all.r = inMemory{f.r, int64(t.offset), table}
	g := &goReader{reader: &all, goPlace: &t.goPlace}
	if leaves.Assembly, err = g.assembly(); err != nil || leaves.Assembly == 0 {
		return GoLeaves{}, err
	}
	leaves.Order = t.endian
	all.left = &budget{read: limits.Read, memory: limits.Memory} // of memory alone, from here on
	for i := range len(t.start) - 1 {
		leaf, ok, err := g.leaf(uint64(i))
		if err != nil && !errors.Is(err, errGoFunc) && !errors.Is(err, ErrMalformed) {
			return GoLeaves{}, err
		}
		if ok {
			leaves.Functions = append(leaves.Functions, leaf)
		}
	}
	return leaves, nil
}

// assembly returns where the table of files has the first file in assembly, 0 if it has none.
func (r *goReader) assembly() (uint32, error) {
	for i := uint64(1); 4*i < r.fileNames-r.units; i++ {
		b, err := r.some(r.units, r.fileNames, 4*i, 4)
		if err != nil || len(b) < 4 {
			return 0, err
		}
		at := r.endian.Uint32(b)
		if at == 1<<32-1 {
			continue // of no use to any function
		}
		name, err := r.text(r.fileNames, r.pctab, uint64(at), maxPath)
		if errors.Is(err, errGoFunc) {
			continue
		}
		if err != nil || strings.HasSuffix(name, ".s") {
			return uint32(i), err
		}
	}
	return 0, nil
}

// leaf reads the i-th function as far as it takes to know whether it is a leaf.
func (r *goReader) leaf(i uint64) (leaf GoLeaf, ok bool, err error) {
	table := r.end - r.offset
	b, err := r.some(r.program, table, (2*i+1)*4, 4)
	if err != nil || len(b) < 4 {
		return leaf, false, err
	}
	at := uint64(r.endian.Uint32(b))
	const fields = 4 * 9
	if b, err = r.some(r.program, table, at, fields); err != nil || len(b) < fields {
		return leaf, false, err
	}
	depths, files := r.endian.Uint32(b[4*4:]), r.endian.Uint32(b[4*5:])
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
	return GoLeaf{UnitAt: r.offset + r.program + at + 4*8, File: first[0]}, true, nil
}

// first returns up to n of the first values of a table.
func (r *goReader) first(off uint32, n int) (values []int32, err error) {
	b, err := r.some(r.pctab, r.program, uint64(off), 20*n)
	if err != nil {
		return nil, err
	}
	goValues(b, uint32(r.quantum), goStart, func(now goResume) bool {
		values = append(values, now.value)
		return len(values) < n
	})
	return values, nil
}
