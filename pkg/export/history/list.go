package history

import (
	"errors"
	"io/fs"
	"math"

	"github.com/klauspost/compress/zstd"
)

// List returns the segments in a folder, oldest first.
func List(dir string) (list []Segment, err error) {
	files, err := segments(dir)
	if err != nil {
		return nil, err
	}
	unpack, err := newDecompressor()
	if err != nil {
		return nil, err
	}
	defer unpack.Close()
	for _, f := range files {
		s, err := summarize(dir, f, unpack)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// Segment is a part of a history.
type Segment struct {
	Summary
	Bytes int64
	// Err is the reason why a part could not be read.
	Err error
}

// summarize returns the summary at the end of a segment. If there is none, it computes the summary from the records.
func summarize(dir string, of file, unpack *zstd.Decoder) (Segment, error) {
	out := Segment{Bytes: of.size}
	f, err := openSegment(dir, of.seq)
	if err != nil {
		return out, err
	}
	defer f.Close()
	var ok bool
	if out.Summary, ok = readSummary(f); !ok {
		a := newAnswer(Query{}, maxEntries, math.MaxInt64)
		out.Err = a.read(f, unpack)
		out.Summary = a.out.Summary
	}
	return out, nil
}

// Total adds up summaries.
func Total(list []Segment) (s Summary) {
	for _, one := range list {
		s.merge(one.Summary)
	}
	s.sort()
	return s
}
