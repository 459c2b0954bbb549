package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// recordEnd returns the end of the last complete record in a file of size bytes. from is the end of an earlier record. It
// returns an error if the rest is not the start of a record. Then another program has written the rest.
type recordEnd func(f io.ReaderAt, from, size int64) (int64, error)

// maxRecord is the maximum size of a record. It is far above the limits of all receivers.
const maxRecord = 1 << 30

var errForeign = errors.New("contains data in another format: choose another file, or move this one away")

// lineEnd is the recordEnd of JSON lines.
func lineEnd(f io.ReaderAt, from, size int64) (int64, error) {
	chunk := make([]byte, 64<<10)
	for end := size; end > from; {
		start := max(from, end-int64(len(chunk)))
		part := chunk[:end-start]
		if _, err := f.ReadAt(part, start); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return lineTorn(f, start+int64(i)+1, size)
		}
		end = start
	}
	return lineTorn(f, from, size)
}

// lineTorn returns an error unless the bytes after end begin like a record.
func lineTorn(f io.ReaderAt, end, size int64) (int64, error) {
	first := make([]byte, 1)
	if end == size {
		return end, nil
	}
	if _, err := f.ReadAt(first, end); err != nil {
		return 0, err
	}
	if first[0] != '{' {
		return 0, errForeign
	}
	return end, nil
}

// protoEnd is the recordEnd of length-prefixed messages.
func protoEnd(f io.ReaderAt, from, size int64) (int64, error) {
	head := make([]byte, 5)
	for at := from; ; {
		n, err := f.ReadAt(head, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		head := head[:min(int64(n), size-at)]
		if len(head) == 0 {
			return at, nil
		}
		length := make([]byte, 4)
		copy(length, head)
		body := int64(binary.BigEndian.Uint32(length))
		// A message begins with the tag of one of its two fields.
		if body > maxRecord || len(head) == 5 && body > 0 && head[4] != 0x0a && head[4] != 0x12 {
			return 0, errForeign
		}
		if len(head) < 4 || at+4+body > size {
			return at, nil
		}
		at += 4 + body
	}
}
