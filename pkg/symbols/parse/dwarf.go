package parse

import (
	"cmp"
	"compress/zlib"
	"context"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// dwarfReader reads the debug information of a file. Package dwarf does not bound the memory or the time of a call, so hostile
// data can crash the process.
type dwarfReader struct {
	*elfFile
	data   *dwarf.Data
	limits symtab.Limits
	zstd   *zstd.Decoder // shared by all compressed sections
	out    symtab.Positions
	over   bool // the time or the memory is used up

	files       symtab.Namer
	fileNumbers map[string]uint32
	fileBytes   int // in the keys of fileNumbers
	rows        int
	sequence    []lineRow
	names       symtab.Namer
	nameNumbers map[dwarf.Offset]uint32 // the number of a function's name, by the offset of its entry
	found       []symbol                // ranges of inlined calls; name is the call's number
}

// debugSections are the sections to read.
var debugSections = []string{
	".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str", ".debug_ranges", ".debug_rnglists", ".debug_addr", ".debug_str_offsets",
}

// readPositions reads the debug information. It returns nil if there is no debug information or too much of it. It omits
// everything after damaged data or a timeout.
func (f *elfFile) readPositions(base uint64, limits symtab.Limits) (p *symtab.Positions) {
	d := &dwarfReader{elfFile: f, limits: limits, fileNumbers: map[string]uint32{}, nameNumbers: map[dwarf.Offset]uint32{}}
	d.out.Base = base
	defer func() {
		if recover() != nil {
			p = nil // the file keeps its names
		}
	}()
	defer func() {
		if d.zstd != nil {
			d.zstd.Close()
		}
	}()
	sections, left := map[string][]byte{}, limits.Debug
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
		sections[name] = b
	}
	if len(sections[".debug_line"]) == 0 {
		return nil
	}
	var err error
	if d.data, err = dwarf.New(sections[".debug_abbrev"], nil, nil, sections[".debug_info"], sections[".debug_line"], nil, sections[".debug_ranges"], sections[".debug_str"]); err != nil {
		return nil
	}
	for _, name := range debugSections[4:] {
		if b := sections[name]; b != nil && name != ".debug_ranges" {
			if err := d.data.AddSection(name, b); err != nil {
				return nil
			}
		}
	}
	d.readEntries()
	return d.finish()
}

// maxZstdWindow is the largest accepted zstd window. Level 19 uses this size.
const maxZstdWindow = 8 << 20

// content returns a section's uncompressed content.
func (d *dwarfReader) content(s *section, limit int64) ([]byte, error) {
	size, in := s.size, d.stream(s)
	if s.flags&elf.SHF_COMPRESSED != 0 {
		width := d.width()
		head := make([]byte, 3*width)
		if _, err := io.ReadFull(in, head); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.name, err)
		}
		kind := elf.CompressionType(binary.LittleEndian.Uint32(head))
		size = number(head[width:], width)
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
	return b[:n], nil // can be shorter than the header says
}

// unpack returns a decompressor for a section.
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
	return nil, errors.New("unknown compression")
}

// contextReader fails after its context has ended.
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

// late reports whether the time or the memory is used up.
func (d *dwarfReader) late() bool {
	d.over = d.over || d.ctx.Err() != nil
	return d.over
}

// keep accounts for n more bytes that stay in memory until the end. They count three times, because growing lists leave garbage
// and are copied at the end. Beyond the limit, late returns true.
func (d *dwarfReader) keep(n int) {
	if !d.over && d.hold(3*int64(n)) != nil {
		d.over = true
	}
}

// finish sorts the results.
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
