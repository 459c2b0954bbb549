// Package history stores requests in a folder, limits their age and bytes, and answers queries.
//
// The folder contains numbered segments. A segment is an append-only file that covers some minutes. It contains a record for
// each request, in package spool's format with two checksums. A record is a compressed ProfilesData of OTLP, whose dictionary
// contains only the entries that earlier records of the segment do not contain. So a segment contains each stack once. A finished
// segment has a summary after its records. If the writer was killed, readers use the complete records. A damaged segment is read
// up to its first damaged record.
//
// One writer holds the folder's lock. Readers need no lock, because they see only complete records.
package history

import (
	"cmp"
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
	"time"

	"github.com/klauspost/compress/zstd"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

const (
	// Suffix ends the names of segments.
	Suffix = ".seg"
	// summaryOwner marks the record that contains a summary. The record's length and trailerMagic follow it.
	summaryOwner = "summary"
	trailerMagic = "IGHX"
	trailerSize  = 4 + len(trailerMagic)
	// maxPayload limits a record's uncompressed size, because a record can be damaged or hostile.
	maxPayload = 64 << 20
	// diskBlock is the disk space of the smallest file.
	diskBlock = 4 << 10
)

// newDecompressor returns a decoder that does not start goroutines.
func newDecompressor() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPayload))
}

// file is a segment in a folder.
type file struct {
	seq  uint64
	size int64     // on disk, in whole blocks
	end  time.Time // of its data, or of the last write to it
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
		list = append(list, file{seq, onDisk(info.Size()), info.ModTime()})
	}
	slices.SortFunc(list, func(a, b file) int { return cmp.Compare(a.seq, b.seq) })
	return list, nil
}

func onDisk(size int64) int64 { return (size + diskBlock - 1) / diskBlock * diskBlock }

// appendSummary appends the summary that ends a segment.
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

// openSegment opens a segment for reading.
func openSegment(dir string, seq uint64) (*os.File, error) {
	return os.OpenFile(segmentPath(dir, seq), os.O_RDONLY|trusted.NoFollow, 0)
}

// errUnfinished means that a segment is still being written, or that its writer was killed.
var errUnfinished = errors.New("its last record is incomplete")

// records calls visit with each record of a segment and its data, which visit can keep. It returns an error if it cannot continue.
// If the error is errUnfinished, only the last record is incomplete.
func records(f *os.File, unpack *zstd.Decoder, visit func(wire.Message, *profilespb.ProfilesData)) error {
	damaged := func(err error) error { return fmt.Errorf("%s: %w", filepath.Base(f.Name()), err) }
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
		if err != nil {
			return damaged(err)
		}
		data, err := wire.Decode(payload)
		if err != nil {
			return damaged(err)
		}
		visit(m, data)
	}
}

// counted is a reader that records whether it has reached the end.
type counted struct {
	r     io.Reader
	ended bool
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.ended = c.ended || errors.Is(err, io.EOF)
	return n, err
}
