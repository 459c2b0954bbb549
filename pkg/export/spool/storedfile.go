package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// storedHead is the part of a file before the body.
type storedHead struct {
	msg    wire.Message // without its body
	layout string       // the otlp_version of the body; empty in version 1
	len    int          // length of the head itself
	body   int64        // length of the body
}

// encodeHead returns the part of a file before the body. The comment on storeMagic describes the layout.
func encodeHead(m wire.Message) []byte {
	owner := m.Owner[:min(len(m.Owner), maxOwner)]
	b := append([]byte(storeMagic), 0, storeVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(storeFixed+1+len(wire.Today)+len(owner)))
	for _, v := range []int64{m.Rows, m.Samples, int64(m.Profiles), storedTime(m.Start), storedTime(m.End), int64(len(m.Body))} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	b = append(append(b, byte(len(wire.Today))), wire.Today...)
	b = append(b, owner...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readHeadFrom reads the head without the body, because at a start there can be tens of thousands of files. It returns ErrCorrupt,
// errUnknownFormat if a later version of this program wrote the file, or an error if r cannot be read.
func readHeadFrom(r io.Reader) (head storedHead, err error) {
	data := make([]byte, storePrefix, 256)
	if err := fill(r, data); err != nil {
		return head, err
	}
	if !bytes.HasPrefix(data, []byte(storeMagic)) {
		return head, fmt.Errorf("%w: not a stored message", ErrCorrupt)
	}
	version := binary.BigEndian.Uint16(data[len(storeMagic):])
	if version == 0 {
		return head, fmt.Errorf("%w: format version 0", ErrCorrupt)
	}
	if version > storeVersion {
		return head, fmt.Errorf("%w: format version %d, this program supports up to %d", errUnknownFormat, version, storeVersion)
	}
	n := int(binary.BigEndian.Uint16(data[len(storeMagic)+2:]))
	if n < storeFixed {
		return head, fmt.Errorf("%w: incomplete header", ErrCorrupt)
	}
	end := storePrefix + n
	data = slices.Grow(data, n+4)[:end+4]
	if err := fill(r, data[storePrefix:]); err != nil {
		return head, err
	}
	if crc32.Checksum(data[:end], castagnoli) != binary.BigEndian.Uint32(data[end:]) {
		return head, fmt.Errorf("%w: wrong checksum of the header", ErrCorrupt)
	}
	var v [6]int64
	for i := range v {
		v[i] = int64(binary.BigEndian.Uint64(data[storePrefix+8*i:]))
	}
	if v[0] < 0 || v[1] < 0 || v[2] < 0 || v[5] < 0 || v[5] > maxStoredBody {
		return head, fmt.Errorf("%w: a number in the header is out of range", ErrCorrupt)
	}
	rest := data[storePrefix+storeFixed : end]
	if version > 1 {
		if len(rest) == 0 || len(rest) <= int(rest[0]) {
			return head, fmt.Errorf("%w: incomplete layout", ErrCorrupt)
		}
		head.layout, rest = string(rest[1:1+rest[0]]), rest[1+rest[0]:]
		if head.layout != "" && !wire.Known(head.layout) {
			return head, fmt.Errorf("%w: otlp_version %q", errUnknownFormat, head.layout)
		}
	}
	head.msg = wire.Message{
		Rows: v[0], Samples: v[1], Profiles: int(v[2]), Start: loadedTime(v[3]), End: loadedTime(v[4]), Owner: string(rest),
	}
	head.len, head.body = end+4, v[5]
	return head, nil
}

// fill reads a part of a head. It returns ErrCorrupt if the file ends too early.
func fill(r io.Reader, part []byte) error {
	_, err := io.ReadFull(r, part)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: incomplete header", ErrCorrupt)
	}
	return err
}

func storedTime(t time.Time) int64 {
	if t.IsZero() {
		return noTime
	}
	return t.UnixNano()
}

func loadedTime(ns int64) time.Time {
	if ns == noTime {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// AppendRecord appends a message in the form of a stored file, for files with several messages.
func AppendRecord(b []byte, m wire.Message) []byte {
	b = append(append(b, encodeHead(m)...), m.Body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(m.Body, castagnoli))
}

// ReadRecord reads the next message that AppendRecord wrote. After the last message, the error is io.EOF.
func ReadRecord(r io.Reader) (wire.Message, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(r, first); err != nil {
		return wire.Message{}, err
	}
	head, body, err := readRecord(io.MultiReader(bytes.NewReader(first), r))
	m := head.msg
	m.Body = body
	return m, err
}

// readRecord reads the head and the body of a message. It returns readHeadFrom's errors.
func readRecord(r io.Reader) (storedHead, []byte, error) {
	head, err := readHeadFrom(r)
	if err != nil {
		return storedHead{}, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r, head.body+4))
	switch {
	case err != nil:
		return storedHead{}, nil, err
	case int64(len(body)) < head.body+4:
		return storedHead{}, nil, fmt.Errorf("%w: incomplete body", ErrCorrupt)
	case crc32.Checksum(body[:head.body], castagnoli) != binary.BigEndian.Uint32(body[head.body:]):
		return storedHead{}, nil, fmt.Errorf("%w: wrong checksum of the body", ErrCorrupt)
	}
	return head, body[:head.body:head.body], nil
}
