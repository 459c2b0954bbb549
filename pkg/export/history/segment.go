// Package history stores requests in a folder, limits their age and bytes, and answers queries.
//
// The folder contains numbered segments. A segment is an append-only file that covers at most 20 minutes. It contains a record for
// each request, in package spool's format with two checksums. A record is a compressed ProfilesData of OTLP, whose dictionary
// contains only the entries that earlier records of the segment do not contain. So a segment contains each stack once. A finished
// segment has a summary after its records. If the writer was killed, readers use the complete records. A damaged segment is read
// up to its first damaged record.
//
// One writer holds the folder's lock. Readers need no lock, because they see only complete records.
package history

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

const (
	// Suffix ends the names of segments.
	Suffix = ".seg"
	// summaryOwner marks the record that contains a summary. The record's length follows it.
	summaryOwner = "summary"
	// maxPayload limits a record's uncompressed size, because a record can be damaged or hostile.
	maxPayload = 16 << 20
	// diskBlock is the disk space of the smallest file.
	diskBlock = 4 << 10
)

// unpack decompresses the bodies of records. With these options, NewReader never fails.
var unpack, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPayload))

// file is a segment in a folder.
type file struct {
	seq  uint64
	size int64
	end  time.Time // of its data, or of the last write to it
	// old is the writer's monotonic time at which the data is too old, by the time of day when the writer saw the segment first.
	old time.Duration
}

func segmentPath(dir string, seq uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", seq, Suffix))
}

// segments lists the segments in a folder, oldest first.
func segments(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []file
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), Suffix)
		seq, err := strconv.ParseUint(name, 10, 63)
		if !ok || err != nil || len(name) != 20 || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // the file was removed in the meantime
		}
		list = append(list, file{seq: seq, size: info.Size(), end: info.ModTime()})
	}
	return list, nil // os.ReadDir sorts by name
}

// onDisk returns the disk space of a file.
func onDisk(size int64) int64 { return (size + diskBlock - 1) / diskBlock * diskBlock }

// encodeSummary returns the record that ends a segment, and its length.
func encodeSummary(s Summary) []byte {
	text, _ := json.Marshal(s) // never fails for a summary
	b := spool.AppendRecord(nil, wire.Message{Body: text, Owner: summaryOwner})
	return binary.BigEndian.AppendUint32(b, uint32(len(b)))
}

// readSummary returns the summary at the end of a segment, or false if there is none.
func readSummary(f *os.File, of file) (s Summary, ok bool) {
	end, trailer := of.size-4, make([]byte, 4)
	if _, err := f.ReadAt(trailer, end); err != nil {
		return s, false
	}
	length := int64(binary.BigEndian.Uint32(trailer))
	m, err := spool.ReadRecord(io.NewSectionReader(f, end-length, min(length, maxPayload))) // of other bytes, the checksum is wrong
	ok = err == nil && m.Owner == summaryOwner && json.Unmarshal(m.Body, &s) == nil
	return s, ok
}

// eachSegment calls visit with each segment in a folder, oldest first.
func eachSegment(dir string, visit func(f *os.File, of file)) error {
	list, err := segments(dir)
	if err != nil {
		return err
	}
	for _, of := range list {
		f, err := os.OpenFile(segmentPath(dir, of.seq), os.O_RDONLY|trusted.NoFollow, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the writer has removed it
		}
		if err != nil {
			return err
		}
		visit(f, of)
		_ = f.Close()
	}
	return nil
}

// eachRecord calls visit with each record of a segment. It returns an error if it cannot continue. An incomplete record at the end
// is no error while the writer can still be writing it.
func eachRecord(f *os.File, of file, visit func(wire.Message) error) error {
	r := io.NewSectionReader(f, 0, of.size)
	for {
		m, err := spool.ReadRecord(r)
		if at, _ := r.Seek(0, io.SeekCurrent); errors.Is(err, io.EOF) || err == nil && m.Owner == summaryOwner || err != nil && at == of.size && changing(f, of) {
			return nil
		}
		if err == nil {
			err = visit(m)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(f.Name()), err)
		}
	}
}

// changing reports whether a segment has changed in the last second, or since it was listed.
func changing(f *os.File, of file) bool {
	info, err := f.Stat()
	return err == nil && (info.Size() != of.size || time.Since(info.ModTime()).Abs() < time.Second)
}
