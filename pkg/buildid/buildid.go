// Package buildid identifies executable files by the build IDs that linkers write into them, and by a hash of the file. Package
// symbols/parse reads the files in a process without rights, because they can be hostile.
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
	// GNU is the linker's build ID in lower-case hexadecimal, as in NT_GNU_BUILD_ID.
	GNU string
	// Go is the build ID of the Go toolchain, as "go tool buildid" prints it.
	Go string
	// HTLHash is process.executable.build_id.htlhash in lower-case hexadecimal, 32 digits.
	HTLHash string
	// Code holds the code segments.
	Code []Segment
}

// Segment is a segment of the file that is loaded into memory.
type Segment struct{ Offset, Size, Address uint64 }

// page is the unit to which the loader rounds the ends of segments.
const page = 4096

// Virtual returns the virtual address of a file offset, as in symbol tables. It returns false if there is no code at the offset.
func (info Info) Virtual(offset uint64) (uint64, bool) {
	for _, s := range info.Code {
		if offset >= s.Offset && offset-s.Offset < s.Size {
			return offset - s.Offset + s.Address, true
		}
	}
	for _, s := range info.Code { // the rest of the loaded pages
		if offset >= s.Offset&^(page-1) && offset < (s.Offset+s.Size+page-1)&^(page-1) {
			return offset - s.Offset + s.Address, true
		}
	}
	return 0, false
}

// maxCode limits the code segments of a file. Real files have one.
const maxCode = 8

// maxGNU and maxGo are the maximum lengths of build IDs, in bytes.
const maxGNU, maxGo = 64, 256

// hashEnd is the number of bytes that HTLHash reads from each end of a file.
const hashEnd = 4096

// Offset returns the file offset of the code at a virtual address.
func (info Info) Offset(address uint64) (uint64, bool) {
	for _, s := range info.Code {
		if address >= s.Address && address-s.Address < s.Size {
			return address - s.Address + s.Offset, true
		}
	}
	return 0, false
}

// AddCode adds a segment, up to maxCode.
func (info *Info) AddCode(s Segment) {
	if len(info.Code) < maxCode {
		info.Code = append(info.Code, s)
	}
}

// Check returns an error for impossible identifiers, because a hostile file can take over the process that reads it.
func (info Info) Check() error {
	digits := func(id string) bool { return strings.Trim(id, "0123456789abcdef") == "" }
	if !digits(info.GNU) || len(info.GNU) > 2*maxGNU || !printable(info.Go) || len(info.Go) > maxGo || !digits(info.HTLHash) || len(info.HTLHash) != 32 || len(info.Code) > maxCode {
		return errors.New("the file's identifiers are invalid")
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// HTLHash returns the value of process.executable.build_id.htlhash: the first half of a SHA-256. Its input is the file's first
// 4096 bytes, its last 4096 bytes, and its length as a big-endian number of 8 bytes. See
// https://opentelemetry.io/docs/specs/semconv/registry/attributes/process/ and
// https://opentelemetry.io/docs/specs/otel/profiles/mappings/.
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

// These are the types of the notes that hold a build ID.
const (
	noteGNU = 3 // NT_GNU_BUILD_ID, of the name "GNU"
	noteGo  = 4 // of the name "Go", see cmd/internal/buildid of the Go toolchain
)

// OfNotes returns the linker's build ID in the kernel's ELF notes, in hexadecimal, or "" if there is none.
func OfNotes(b []byte) string {
	var info Info
	info.AddNotes(b, binary.NativeEndian, 4)
	return info.GNU
}

// AddNotes adds the build IDs of ELF notes. A note has a header of three words: the lengths of its name and description, and its
// type. Then come the name and the description, each padded.
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
