package parse

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// cursor reads debug information. A read past the end gives 0 and sets bad.
type cursor struct {
	b     []byte
	at    int
	order binary.ByteOrder
	bad   bool
}

// cursorAt returns a cursor at an offset.
func cursorAt(b []byte, off uint64, order binary.ByteOrder) cursor {
	if off > uint64(len(b)) {
		return cursor{b: nil, order: order, bad: true}
	}
	return cursor{b: b, at: int(off), order: order}
}

// bytes returns the next n bytes, nil if they are not there.
func (c *cursor) bytes(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)-c.at) {
		c.bad = true
		return nil
	}
	b := c.b[c.at : c.at+int(n)]
	c.at += int(n)
	return b
}

func (c *cursor) skip(n uint64) { c.bytes(n) }

// fixed reads a number of n bytes, 1, 2, 3, 4 or 8.
func (c *cursor) fixed(n uint64) uint64 {
	b := c.bytes(n)
	switch {
	case b == nil:
		return 0
	case n == 1:
		return uint64(b[0])
	case n == 2:
		return uint64(c.order.Uint16(b))
	case n == 3 && c.order == binary.ByteOrder(binary.LittleEndian):
		return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16
	case n == 3:
		return uint64(b[2]) | uint64(b[1])<<8 | uint64(b[0])<<16
	case n == 4:
		return uint64(c.order.Uint32(b))
	case n == 8:
		return c.order.Uint64(b)
	}
	c.bad = true
	return 0
}

func (c *cursor) uleb() uint64 {
	if c.bad {
		return 0
	}
	n, w := binary.Uvarint(c.b[c.at:])
	if w <= 0 {
		c.bad = true
		return 0
	}
	c.at += w
	return n
}

func (c *cursor) sleb() int64 {
	n, shift := int64(0), 0
	for !c.bad && shift < 70 {
		b := c.fixed(1)
		if shift < 64 {
			n |= int64(b&0x7f) << shift
		}
		shift += 7
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift < 64 {
				n |= -1 << shift
			}
			return n
		}
	}
	c.bad = true
	return 0
}

// text reads a text that ends with a zero byte. One of more than limit bytes is bad.
func (c *cursor) text(limit int) []byte {
	if c.bad {
		return nil
	}
	n := bytes.IndexByte(c.b[c.at:min(len(c.b), c.at+limit+1)], 0)
	if n < 0 {
		c.bad = true
		return nil
	}
	b := c.b[c.at : c.at+n]
	c.at += n + 1
	return b
}

// length reads the length of a unit in bytes, and how many bytes an offset in the unit has.
func (c *cursor) length() (n, width uint64) {
	if n = c.fixed(4); n == 0xffffffff {
		return c.fixed(8), 8
	}
	return n, 4
}

// dwarfReader reads the debug information of a file.
type dwarfReader struct {
	*elfFile
	limits   symtab.Limits
	sections map[string][]byte
	zstd     *zstd.Decoder // of all sections that want it
	out      symtab.Positions

	files       symtab.Namer
	fileNumbers map[string]uint32
	fileBytes   int // of the keys of fileNumbers
	rows        int
	sequence    []lineRow
	work, check int  // see late
	over        bool // the time is up, or the memory
	names       symtab.Namer
	nameNumbers map[uint64]uint32 // the number of a function's name, by the offset of its description in .debug_info
	found       []symbol          // ranges of inlined calls; name is the number of the call
	abbrevs     map[uint64]map[uint64]abbrev
	attributes  int // of abbrevs; each abbreviation counts for some
	units       []unit
}

// debugSections are the sections that are read.
var debugSections = []string{
	".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str", ".debug_ranges", ".debug_rnglists", ".debug_addr", ".debug_str_offsets",
}

// readPositions reads the debug information, nil if there is none or it is more than the limits allow. What is damaged, or
// comes after the time is up, is left out.
func (f *elfFile) readPositions(base uint64, limits symtab.Limits) (p *symtab.Positions) {
	d := &dwarfReader{
		elfFile: f, limits: limits, sections: map[string][]byte{}, fileNumbers: map[string]uint32{}, nameNumbers: map[uint64]uint32{},
		abbrevs: map[uint64]map[uint64]abbrev{},
	}
	d.out.Base = base
	defer func() {
		if recover() != nil {
			p = nil // the file has its names
		}
	}()
	defer func() {
		if d.zstd != nil {
			d.zstd.Close()
		}
	}()
	left := limits.Debug
	for _, name := range debugSections {
		s := f.sectionNamed(name)
		if s == nil {
			continue
		}
		b, err := d.content(s, left)
		if err != nil {
			return nil
		}
		left -= int64(len(b))
		d.sections[name] = b
	}
	if len(d.sections[".debug_line"]) == 0 || len(d.sections[".debug_info"]) == 0 {
		return nil
	}
	d.readUnits()
	return d.finish()
}

// maxZstdWindow is how far back zstd may look: as far as with its level 19.
const maxZstdWindow = 8 << 20

// content returns what a section holds, unpacked.
func (d *dwarfReader) content(s *section, limit int64) ([]byte, error) {
	size, in := s.size, d.stream(s)
	if s.flags&elf.SHF_COMPRESSED != 0 {
		width := uint64(4)
		if d.class == elf.ELFCLASS64 {
			width = 8
		}
		head := make([]byte, 3*width)
		if _, err := io.ReadFull(in, head); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.name, err)
		}
		c := cursor{b: head, order: d.order}
		kind := elf.CompressionType(c.fixed(4))
		c.skip(width - 4) // reserved
		size = c.fixed(width)
		unpacked, err := d.unpack(kind, in)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", symtab.ErrMalformed, s.name, err)
		}
		in = unpacked
	}
	if size > uint64(max(limit, 0)) || s.flags&elf.SHF_COMPRESSED == 0 && size > uint64(d.size) {
		return nil, fmt.Errorf("%w: %d bytes of %s", symtab.ErrTooLarge, size, s.name)
	}
	if err := d.hold(int64(size)); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := io.ReadFull(contextReader{d.ctx, in}, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: %s: %w", symtab.ErrMalformed, s.name, err)
	}
	return b[:n], nil // maybe less than the file claims
}

// unpack returns what unpacks a section.
func (d *dwarfReader) unpack(kind elf.CompressionType, in io.Reader) (io.Reader, error) {
	switch kind {
	case elf.COMPRESS_ZLIB:
		return zlib.NewReader(in)
	case elf.COMPRESS_ZSTD:
		if d.zstd != nil {
			return d.zstd, d.zstd.Reset(in)
		}
		if err := d.hold(3 * maxZstdWindow); err != nil {
			return nil, err
		}
		var err error
		d.zstd, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		return d.zstd, err
	}
	return nil, errors.New("it is packed in an unknown way")
}

// contextReader ends when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// late adds to the work that was done, in units of about the time that a byte takes, and reports whether the time is
// up. It looks at the context once per interval of work only.
func (d *dwarfReader) late(work int) bool {
	const interval = 64 << 10
	if d.work += work; d.work >= d.check {
		d.check = d.work + interval
		d.over = d.over || d.ctx.Err() != nil
	}
	return d.over
}

// keep is called for n bytes more that are kept until the end. Lists grow, which leaves copies behind, and are copied in
// the end: they count for three times their size. Past the limit it is as if the time was up.
func (d *dwarfReader) keep(n int) {
	if !d.over && d.hold(3*int64(n)) != nil {
		d.over = true
	}
}

// finish sorts what was found.
func (d *dwarfReader) finish() *symtab.Positions {
	p := &d.out
	slices.SortStableFunc(p.Pieces, func(a, b symtab.Piece) int { return cmp.Compare(a.Start, b.Start) })
	p.Pieces, p.Rows = slices.Clip(slices.Clone(p.Pieces)), slices.Clip(slices.Clone(p.Rows))
	slices.SortFunc(d.found, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(b.size, a.size), cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
	})
	for s := range flatten(d.found) {
		if s.end-p.Base > 1<<32-1 {
			break
		}
		p.Starts, p.Sizes = append(p.Starts, uint32(s.start-p.Base)), append(p.Sizes, uint32(s.end-s.start))
		p.Calls = append(p.Calls, d.found[s.symbol].name)
	}
	p.Inlined = slices.Clip(slices.Clone(p.Inlined))
	p.Files, p.Names = *d.files.Finish(), *d.names.Finish()
	return p
}
