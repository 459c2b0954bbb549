// Package buildid has the identifiers of executable files: the build IDs that linkers write into them, and a hash of the file.
// Package symbols/parse reads them in a process without rights, because the files can be hostile.
package buildid

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Info identifies a file. Parts that the file lacks are empty.
type Info struct {
	// GNU is the build ID of the linker in lower-case hexadecimal, as in NT_GNU_BUILD_ID.
	GNU string
	// Go is the build ID of the Go toolchain, as "go tool buildid" prints it.
	Go string
	// HTLHash is process.executable.build_id.htlhash in lower-case hexadecimal, 32 digits.
	HTLHash string
	// Code is the place of the code in the file and in memory.
	Code []Segment
}

// Segment is a part of a file that is loaded.
type Segment struct{ Offset, Size, Address uint64 }

// page is the unit to which the loader rounds the ends of a segment.
const page = 4096

// Virtual returns the address in symbol tables for an offset in the file. It returns false if there
// is no code at the offset.
func (info Info) Virtual(offset uint64) (uint64, bool) {
	for _, s := range info.Code {
		if offset >= s.Offset && offset-s.Offset < s.Size {
			return offset - s.Offset + s.Address, true
		}
	}
	for _, s := range info.Code { // the part that is loaded with it
		if offset >= s.Offset&^(page-1) && offset < (s.Offset+s.Size+page-1)&^(page-1) {
			return offset - s.Offset + s.Address, true
		}
	}
	return 0, false
}

// maxCode limits the segments of code in a file. Real files have one.
const maxCode = 8

// maxGNU and maxGo are the longest build IDs, in bytes.
const maxGNU, maxGo = 64, 256

// hashEnd is the number of bytes at each end of a file in HTLHash.
const hashEnd = 4096

// Offset returns the offset in the file of the code at an address of symbol tables.
func (info Info) Offset(address uint64) (uint64, bool) {
	for _, s := range info.Code {
		if address >= s.Address && address-s.Address < s.Size {
			return address - s.Address + s.Offset, true
		}
	}
	return 0, false
}

// AddCode adds a segment of code.
func (info *Info) AddCode(s Segment) {
	if len(info.Code) < maxCode {
		info.Code = append(info.Code, s)
	}
}

// Check returns an error for impossible identifiers, because the process that reads files can have become hostile.
func (info Info) Check() error {
	digits := func(id string) bool { return strings.Trim(id, "0123456789abcdef") == "" }
	if !digits(info.GNU) || len(info.GNU) > 2*maxGNU || !printable(info.Go) || len(info.Go) > maxGo || !digits(info.HTLHash) || len(info.HTLHash) != 32 || len(info.Code) > maxCode {
		return errors.New("the identity of the file is not valid")
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// HTLHash returns the hash for process.executable.build_id.htlhash. By the specification it is the first half of a SHA-256. Its
// input is the file's first 4096 bytes, its last 4096 bytes, and its length as a big-endian number of 8 bytes
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

// The types of notes that hold a build ID, by the name in the note.
const (
	noteGNU = 3 // NT_GNU_BUILD_ID, of "GNU"
	noteGo  = 4 // of "Go", see cmd/internal/buildid of the Go toolchain
)

// OfNotes returns the linker's build ID in notes of this machine's kernel, in hexadecimal; "" if there is none.
func OfNotes(b []byte) string {
	var info Info
	info.AddNotes(b, binary.NativeEndian, 4)
	return info.GNU
}

// AddNotes adds the build IDs in notes. A note has a header of three words: the lengths of name and description, and the type.
// Name and description follow, each padded.
func (info *Info) AddNotes(b []byte, order binary.ByteOrder, align uint64) {
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
		switch name, id := string(b[12:12+nameLen]), b[descAt:descAt+descLen]; {
		case info.GNU == "" && kind == noteGNU && name == "GNU\x00" && len(id) > 0 && len(id) <= maxGNU:
			info.GNU = hex.EncodeToString(id)
		case info.Go == "" && kind == noteGo && name == "Go\x00\x00" && len(id) > 0 && len(id) <= maxGo && printable(string(id)):
			info.Go = string(id)
		}
		b = b[min(pad(descAt+descLen), uint64(len(b))):]
	}
}
