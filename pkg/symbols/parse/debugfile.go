package parse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"

	"github.com/therootcompany/xz"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// findDebug opens f's debug file. It searches by the build ID id, or by the name and checksum in .gnu_debuglink. It returns the
// debug file's headers and the open file, which the caller closes. Both are nil if there is no debug file. The only error is a
// timeout.
func (f *elfFile) findDebug(d symtab.DebugFiles, id string) (*elfFile, *os.File, error) {
	if d == nil {
		return nil, nil, nil
	}
	found, file, err := f.tryDebug(d, symtab.DebugKey{ID: id}, func(r io.ReaderAt, size int64) bool {
		other, err := openELF(&reader{ctx: f.ctx, r: r, size: size, left: f.left})
		if err != nil {
			return false
		}
		var info buildid.Info
		other.addIDs(&info)
		return info.GNU == id
	})
	if err != nil || found != nil {
		return found, file, err
	}
	name, sum := f.debugLink()
	return f.tryDebug(d, symtab.DebugKey{Link: name}, func(r io.ReaderAt, size int64) bool { return f.checksum(r, size) == sum })
}

// tryDebug returns the first candidate that right accepts.
func (f *elfFile) tryDebug(d symtab.DebugFiles, by symtab.DebugKey, right func(io.ReaderAt, int64) bool) (*elfFile, *os.File, error) {
	if !by.Valid() {
		return nil, nil, nil
	}
	for n := range symtab.MaxCandidates {
		file, size, last := d.Candidate(by, n)
		if file != nil {
			if right(file, size) {
				if found, err := openELF(&reader{ctx: f.ctx, r: file, size: size, left: f.left}); err == nil {
					return found, file, nil
				}
			}
			file.Close()
		}
		if err := f.ctx.Err(); err != nil || last {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// checksum returns the checksum of a whole file, or 0 if the file is too large.
func (f *elfFile) checksum(r io.ReaderAt, size int64) uint32 {
	in := &reader{ctx: f.ctx, r: r, size: size, left: f.left}
	buf := make([]byte, symtab.Chunk)
	sum := uint32(0)
	for off := int64(0); off < size; off += symtab.Chunk {
		b := buf[:min(symtab.Chunk, size-off)]
		if in.at(b, uint64(off)) != nil {
			return 0
		}
		sum = crc32.Update(sum, crc32.IEEETable, b)
	}
	return sum
}

// debugLink reads .gnu_debuglink. The section contains a file name without folder, padded to a multiple of four bytes, and a
// checksum.
func (f *elfFile) debugLink() (name string, sum uint32) {
	s := f.sectionNamed(".gnu_debuglink")
	if s == nil || s.size > 4096 {
		return "", 0
	}
	b := make([]byte, s.size)
	if f.at(b, s.offset) != nil {
		return "", 0
	}
	n := bytes.IndexByte(b, 0)
	at := (n + 4) &^ 3
	if n <= 0 || at+4 > len(b) || bytes.ContainsRune(b[:n], '/') {
		return "", 0
	}
	return string(b[:n]), binary.LittleEndian.Uint32(b[at:])
}

// These bound .gnu_debugdata.
const (
	maxMiniDebug = 64 << 20 // uncompressed bytes
	maxXZWindow  = 16 << 20 // "xz -7"
)

// miniDebug decompresses .gnu_debugdata, an ELF file with symbols that .dynsym lacks
// (https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html). It returns nil if the section is missing or
// damaged.
func (f *elfFile) miniDebug() (*elfFile, error) {
	s := f.sectionNamed(".gnu_debugdata")
	if s == nil || s.size > maxMiniDebug {
		return nil, nil
	}
	if err := f.hold(2 * maxXZWindow); err != nil {
		return nil, err
	}
	in, err := xz.NewReader(f.stream(s), maxXZWindow)
	if err != nil {
		return nil, nil
	}
	var plain pieces
	for size := 0; ; {
		if err := f.expired(); err != nil {
			return nil, err
		}
		if err := f.hold(symtab.Chunk); err != nil {
			return nil, err
		}
		piece := make([]byte, symtab.Chunk)
		n, err := io.ReadFull(in, piece)
		if size += n; size > maxMiniDebug {
			return nil, nil
		}
		plain = append(plain, piece[:n])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, nil
		}
	}
	mini, err := openELF(&reader{ctx: f.ctx, r: plain, size: plain.size(), left: f.left})
	if err != nil {
		return nil, nil
	}
	return mini, nil
}

// pieces is decompressed data in chunks. One growing slice would be copied repeatedly.
type pieces [][]byte

func (p pieces) size() int64 { return int64(len(p)-1)*symtab.Chunk + int64(len(p[len(p)-1])) }

// ReadAt implements io.ReaderAt.
func (p pieces) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		if off >= p.size() {
			return n, io.EOF
		}
		more := copy(b[n:], p[off/symtab.Chunk][off%symtab.Chunk:])
		n, off = n+more, off+int64(more)
	}
	return n, nil
}
