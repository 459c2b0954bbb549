package parse

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"io"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// maxNotes limits the bytes of notes that are read from a file.
const maxNotes = 64 << 10

// infoLimits limits how much of a file is read to identify it.
var infoLimits = symtab.Limits{Read: 16 << 20, Memory: 16 << 20}

// ReadInfo identifies a file of size bytes. If the file is not an ELF file or is damaged, only its hash is known.
func ReadInfo(ctx context.Context, r io.ReaderAt, size int64) (info buildid.Info, err error) {
	if info.HTLHash, err = buildid.HTLHash(r, size); err != nil {
		return buildid.Info{}, err
	}
	f, err := openELF(newReader(ctx, r, size, infoLimits))
	if err != nil {
		return info, ctx.Err()
	}
	for _, s := range f.loads() {
		if s.flags&elf.PF_X != 0 {
			info.AddCode(buildid.Segment{Offset: s.offset, Size: s.fileSize, Address: s.addr})
		}
	}
	f.addIDs(&info)
	return info, ctx.Err()
}

// addIDs adds the build IDs. It reads segments of type PT_NOTE, which do not need section headers. It also reads sections of type
// SHT_NOTE, because Go's linker omits the GNU build ID from the segment. It treats damaged parts as missing.
func (f *elfFile) addIDs(info *buildid.Info) {
	left := uint64(maxNotes)
	add := func(is bool, offset, size, align uint64) {
		if !is || offset > uint64(f.size) || info.GNU != "" && info.Go != "" {
			return
		}
		b := make([]byte, min(size, left, uint64(f.size)-offset))
		left -= uint64(len(b))
		if f.at(b, offset) == nil {
			info.AddNotes(b, binary.LittleEndian, align)
		}
	}
	for _, s := range f.segments {
		add(s.kind == elf.PT_NOTE, s.offset, s.fileSize, s.align)
	}
	for i := range f.sections {
		s := &f.sections[i]
		add(s.kind == elf.SHT_NOTE, s.offset, s.size, s.align)
	}
}
