package history

import (
	"errors"
	"io/fs"

	"github.com/klauspost/compress/zstd"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
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
		if err != nil && !errors.As(err, new(Damage)) {
			return nil, err
		}
		s.Err = err
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
	if s, ok := readSummary(f); ok {
		out.Summary = s
		return out, nil
	}
	from := &tables{}
	var b block
	err = records(f, unpack, func(m wire.Message, payload string) error {
		c, err := from.readEntries(payload)
		if err != nil {
			return err
		}
		out.record(m.Start, m.End, m.Rows)
		for range c.count() {
			if err := b.read(&c); err != nil {
				return err
			}
			one := Sum{Samples: int64(len(b.values))}
			for _, v := range b.values {
				one.Value += v
			}
			if b.duration == 0 {
				one.State = b.time
			}
			kind := from.typeUnit(b.measure)
			out.sum(sumKey{from.service(b.resource), from.scope(b.scope), kind[0], kind[1]}).merge(one)
		}
		return nil
	})
	return out, err
}

// Total adds up summaries.
func Total(list []Segment) (s Summary) {
	for _, one := range list {
		s.merge(one.Summary)
	}
	s.sort()
	return s
}
