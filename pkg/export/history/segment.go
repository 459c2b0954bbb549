// Package history keeps requests in a folder, bounded by age and by bytes, and answers questions about them.
//
// The folder holds segments, which are numbered. A segment is a file of some minutes that only grows: a record for each request,
// in the form of package spool, with two checksums. A record has the samples, and their additions to the segment's own
// dictionary. So a stack is written once in a segment. A segment that was ended has a summary behind its records. If its writer
// was killed, its whole records are read. A damaged segment is read up to its first damaged record.
//
// One writer holds the folder's lock. Readers need none: they see whole records only.
package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

const (
	suffix = ".seg"
	// summaryOwner marks the record of a summary. It ends in the length of the record and trailerMagic.
	summaryOwner = "summary"
	trailerMagic = "IGHX"
	trailerSize  = 4 + len(trailerMagic)
	// maxPayload bounds the unpacked size of a damaged or hostile record.
	maxPayload = 64 << 20
	// diskBlock is the smallest file's size on disk.
	diskBlock = 4 << 10
)

// newDecompressor returns a decoder that starts no goroutines.
func newDecompressor() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPayload))
}

// file is a segment in a folder.
type file struct {
	seq  uint64
	size int64 // on disk, in whole blocks
}

func segmentPath(dir string, seq uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", seq, suffix))
}

// segments lists the segments of a folder, the oldest first.
func segments(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []file
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		seq, err := strconv.ParseUint(name, 10, 63)
		if !ok || err != nil || len(name) != 20 || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		list = append(list, file{seq, onDisk(info.Size())})
	}
	slices.SortFunc(list, func(a, b file) int { return int(int64(a.seq) - int64(b.seq)) })
	return list, nil
}

func onDisk(size int64) int64 { return (size + diskBlock - 1) / diskBlock * diskBlock }

// appendSummary appends the end of a segment.
func appendSummary(b []byte, s Summary) ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	start := len(b)
	b = spool.AppendRecord(b, wire.Message{Body: text, Rows: s.Rows, Start: s.Start, End: s.End, Owner: summaryOwner})
	b = binary.BigEndian.AppendUint32(b, uint32(len(b)-start))
	return append(b, trailerMagic...), nil
}

// readSummary returns the summary at the end of a segment, or false if there is none.
func readSummary(f *os.File) (s Summary, ok bool) {
	info, err := f.Stat()
	if err != nil || info.Size() < int64(trailerSize) {
		return s, false
	}
	trailer := make([]byte, trailerSize)
	if _, err := f.ReadAt(trailer, info.Size()-int64(trailerSize)); err != nil || string(trailer[4:]) != trailerMagic {
		return s, false
	}
	length := int64(binary.BigEndian.Uint32(trailer))
	if length > min(info.Size()-int64(trailerSize), maxPayload) {
		return s, false
	}
	m, err := spool.ReadRecord(io.NewSectionReader(f, info.Size()-int64(trailerSize)-length, length))
	if err != nil || m.Owner != summaryOwner || json.Unmarshal(m.Body, &s) != nil {
		return Summary{}, false
	}
	return s, true
}

// openSegment opens a segment to read.
func openSegment(dir string, seq uint64) (*os.File, error) {
	return os.OpenFile(segmentPath(dir, seq), os.O_RDONLY|trusted.NoFollow, 0)
}

// Damage is the error of a segment that could only be read in part.
type Damage struct {
	File string
	Err  error
}

func (d Damage) Error() string { return fmt.Sprintf("%s: %v", filepath.Base(d.File), d.Err) }

func (d Damage) Unwrap() error { return d.Err }

// errUnfinished is the end of a segment with a killed writer, or one that is being written.
var errUnfinished = errors.New("its last record is incomplete")

// records calls visit with each record of a segment and its unpacked body, which is visit's. It returns Damage if it could not
// continue. With errUnfinished, only the last record is incomplete.
func records(f *os.File, unpack *zstd.Decoder, visit func(m wire.Message, payload string) error) error {
	damaged := func(err error) error { return Damage{f.Name(), err} }
	in := &counted{r: f}
	for {
		m, err := spool.ReadRecord(in)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && in.ended:
			return damaged(errUnfinished)
		case err != nil:
			return damaged(err)
		case m.Owner == summaryOwner:
			return nil
		}
		payload, err := unpack.DecodeAll(m.Body, nil)
		if err == nil && !bytes.HasPrefix(payload, []byte{format}) {
			err = fmt.Errorf("a record is %w: another version has written it", errFormat)
		}
		if err == nil {
			err = visit(m, string(payload))
		}
		if err != nil {
			return damaged(err)
		}
	}
}

// counted notes the end of a reader.
type counted struct {
	r     io.Reader
	ended bool
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.ended = c.ended || errors.Is(err, io.EOF)
	return n, err
}
