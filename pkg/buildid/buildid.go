// Package buildid reads what identifies an executable file: the build IDs that linkers write into
// it, and a hash of the file itself.
//
// The files come from programs that nobody vouches for. Of each only its first and last 4 KiB, its
// headers and its notes are read, and of the latter at most MaxNotes bytes.
package buildid

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// Info identifies a file. What the file does not have is empty.
type Info struct {
	// GNU is the build ID of the linker in lower-case hexadecimal, as in NT_GNU_BUILD_ID.
	GNU string
	// Go is the build ID of the Go toolchain, as "go tool buildid" prints it.
	Go string
	// HTLHash is process.executable.build_id.htlhash in lower-case hexadecimal, 32 digits.
	HTLHash string
	// Code is where the file's code lies in it, and in memory.
	Code []Segment
}

// Segment is a part of a file that is loaded.
type Segment struct{ Offset, Size, Address uint64 }

// page is what the ends of a segment are rounded to where it is loaded.
const page = 4096

// Virtual returns the address that symbol tables have for what lies at that offset in the file, and
// false where that is no code.
func (info Info) Virtual(offset uint64) (uint64, bool) {
	for _, s := range info.Code {
		if offset >= s.Offset && offset-s.Offset < s.Size {
			return offset - s.Offset + s.Address, true
		}
	}
	for _, s := range info.Code { // what is loaded with it
		if offset >= s.Offset&^(page-1) && offset < (s.Offset+s.Size+page-1)&^(page-1) {
			return offset - s.Offset + s.Address, true
		}
	}
	return 0, false
}

const (
	// MaxNotes is how many bytes of notes are read.
	MaxNotes = 64 << 10
	// maxHeaders is how many headers of each kind are read. Real files have a dozen segments and a few
	// dozen sections.
	maxHeaders = 64
	// maxCode is how many segments of code are kept. Real files have one.
	maxCode = 8
	// maxGNU and maxGo are the longest build IDs that are taken, in bytes.
	maxGNU, maxGo = 64, 256

	hashEnd = 4096
)

// Read identifies the file r of that size in bytes. A file that is no ELF file has a hash only.
func Read(r io.ReaderAt, size int64) (Info, error) {
	var info Info
	hash, err := HTLHash(r, size)
	if err != nil {
		return info, err
	}
	info.HTLHash = hash
	info.readELF(r)
	return info, nil
}

// HTLHash returns the hash that the specification defines for process.executable.build_id.htlhash:
// the first half of the SHA-256 of the file's first 4096 bytes, its last 4096 bytes and its length
// as a big-endian number of 8 bytes
// (https://opentelemetry.io/docs/specs/semconv/registry/attributes/process/, and
// https://opentelemetry.io/docs/specs/otel/profiles/mappings/).
func HTLHash(r io.ReaderAt, size int64) (string, error) {
	n := min(size, hashEnd)
	h := sha256.New()
	for _, off := range []int64{0, size - n} {
		copied, err := io.Copy(h, io.NewSectionReader(r, off, n))
		if err == nil && copied < n {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", fmt.Errorf("hashing the ends of a file: %w", err)
		}
	}
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(size))
	h.Write(length[:])
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// notes is where a header says that notes are.
type notes struct{ offset, size, align uint64 }

// readELF fills in the segments and the build IDs, if the file is an ELF file that has them. What is
// damaged counts as not there.
func (info *Info) readELF(r io.ReaderAt) {
	order, all := info.readHeaders(r)
	left := uint64(MaxNotes)
	for _, s := range all {
		if info.GNU != "" && info.Go != "" {
			return
		}
		n := min(s.size, left)
		left -= n
		text := make([]byte, n)
		got, err := r.ReadAt(text, int64(s.offset))
		if err != nil && err != io.EOF {
			continue
		}
		info.takeNotes(text[:got], order, s.align)
	}
}

// readHeaders fills in the code and returns where the notes are: the segments of type PT_NOTE, which a file without section
// headers has too, and the sections of type SHT_NOTE, because Go's linker leaves the GNU build ID out
// of the segment.
func (info *Info) readHeaders(r io.ReaderAt) (binary.ByteOrder, []notes) {
	var ident [elf.EI_NIDENT]byte
	if _, err := r.ReadAt(ident[:], 0); err != nil || string(ident[:4]) != elf.ELFMAG {
		return nil, nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(ident[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	read := func(off uint64, v any) bool {
		return off < 1<<62 && binary.Read(io.NewSectionReader(r, int64(off), int64(binary.Size(v))), order, v) == nil
	}
	var found []notes
	add := func(is bool, off, size, align uint64) {
		if is && off < 1<<62 {
			found = append(found, notes{off, size, align})
		}
	}
	program := func(kind, flags uint32, off, size, addr, align uint64) {
		add(elf.ProgType(kind) == elf.PT_NOTE, off, size, align)
		if elf.ProgType(kind) == elf.PT_LOAD && elf.ProgFlag(flags)&elf.PF_X != 0 && len(info.Code) < maxCode {
			info.Code = append(info.Code, Segment{off, size, addr})
		}
	}
	switch elf.Class(ident[elf.EI_CLASS]) {
	case elf.ELFCLASS64:
		var h elf.Header64
		if !read(0, &h) {
			return nil, nil
		}
		for i := range min(uint64(h.Phnum), maxHeaders) {
			var p elf.Prog64
			if read(h.Phoff+i*56, &p) {
				program(p.Type, p.Flags, p.Off, p.Filesz, p.Vaddr, p.Align)
			}
		}
		for i := range min(uint64(h.Shnum), maxHeaders) {
			var s elf.Section64
			add(read(h.Shoff+i*64, &s) && elf.SectionType(s.Type) == elf.SHT_NOTE, s.Off, s.Size, s.Addralign)
		}
	case elf.ELFCLASS32:
		var h elf.Header32
		if !read(0, &h) {
			return nil, nil
		}
		for i := range min(uint64(h.Phnum), maxHeaders) {
			var p elf.Prog32
			if read(uint64(h.Phoff)+i*32, &p) {
				program(p.Type, p.Flags, uint64(p.Off), uint64(p.Filesz), uint64(p.Vaddr), uint64(p.Align))
			}
		}
		for i := range min(uint64(h.Shnum), maxHeaders) {
			var s elf.Section32
			add(read(uint64(h.Shoff)+i*40, &s) && elf.SectionType(s.Type) == elf.SHT_NOTE, uint64(s.Off), uint64(s.Size), uint64(s.Addralign))
		}
	}
	return order, found
}

// The types of notes that hold a build ID, by the name in the note.
const (
	noteGNU = 3 // NT_GNU_BUILD_ID, of "GNU"
	noteGo  = 4 // of "Go", see cmd/internal/buildid of the Go toolchain
)

// OfNotes returns the linker's build ID in notes of this machine's kernel, in hexadecimal; "" if there is none.
func OfNotes(b []byte) string {
	var info Info
	info.takeNotes(b, binary.NativeEndian, 4)
	return info.GNU
}

// takeNotes takes the build IDs out of notes: a header of three words, the length of the name, of the
// description and the type, and then the two, each padded.
func (info *Info) takeNotes(b []byte, order binary.ByteOrder, align uint64) {
	if align != 8 {
		align = 4
	}
	pad := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		nameLen, descLen := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:]))
		kind := order.Uint32(b[8:])
		descAt := pad(12 + nameLen)
		if descAt+descLen > uint64(len(b)) {
			return
		}
		name, desc := b[12:12+nameLen], b[descAt:descAt+descLen]
		switch {
		case info.GNU == "" && kind == noteGNU && string(name) == "GNU\x00" && descLen > 0 && descLen <= maxGNU:
			info.GNU = hex.EncodeToString(desc)
		case info.Go == "" && kind == noteGo && string(name) == "Go\x00\x00" && descLen > 0 && descLen <= maxGo && printable(desc):
			info.Go = string(desc)
		}
		b = b[min(pad(descAt+descLen), uint64(len(b))):]
	}
}

func printable(b []byte) bool {
	return !bytes.ContainsFunc(b, func(c rune) bool { return c <= ' ' || c > '~' })
}
