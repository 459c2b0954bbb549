package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// A segment ends when it reaches one of these limits. The limits matter because a query reads whole segments, and damage makes
// the rest of a segment unreadable.
const (
	segmentTime   = 20 * time.Minute
	segmentMemory = 20 << 20 // bytes of the dictionary in memory
	// A segment also ends at 1/segmentShare of the history's size, because only whole segments are removed.
	segmentShare = 16
	// settled is how long a process runs before it removes old segments. After a start, the clock can be wrong.
	settled = 10 * time.Minute
)

// Writer is the transport that writes a history. It writes each request as a record. Its methods must not be called concurrently.
// An exporter calls Send from only one goroutine, and Close once, when no Send is running.
type Writer struct {
	dir   string
	limit config.Retention
	warn  func(error)
	clock func() (now time.Time, running time.Duration) // the time of day, which can be set, and a monotonic time
	lock  *os.File

	pack *zstd.Encoder
	old  []file // finished segments, oldest first
	next uint64
	seg  *segment // the current segment, or nil
}

// segment is the current segment.
type segment struct {
	file    *os.File
	seq     uint64
	size    int64
	began   time.Duration
	dict    *interned
	summary Summary
}

// New opens and locks a history's folder. warn is called with errors that do not prevent a request from being written.
func New(dir string, limit config.Retention, warn func(error)) (*Writer, error) {
	start := time.Now()
	return open(dir, limit, warn, func() (time.Time, time.Duration) { return time.Now(), time.Since(start) })
}

func open(dir string, limit config.Retention, warn func(error), clock func() (time.Time, time.Duration)) (*Writer, error) {
	lock, err := spool.LockFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	pack, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(512<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	w := &Writer{dir: dir, limit: limit, warn: warn, clock: clock, lock: lock, pack: pack, next: 1}
	list, err := segments(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("path: %w", err), lock.Close())
	}
	for _, f := range list {
		w.next = f.seq + 1
		w.keep(f)
	}
	return w, nil
}

func (w *Writer) keep(f file) {
	now, running := w.clock()
	f.old = running + w.limit.MaxAge - max(0, now.Sub(f.end))
	w.old = append(w.old, f)
}

// Send writes one request.
func (w *Writer) Send(ctx context.Context, m wire.Message) attempt.Outcome {
	failed := func(err error) attempt.Outcome {
		w.drop()
		return attempt.Outcome{What: err.Error(), Hint: "free disk space, or check the permissions of the folder"}
	}
	now, running := w.clock()
	if w.seg != nil && (running-w.seg.began >= segmentTime || w.seg.dict.bytes > segmentMemory || w.seg.size >= w.limit.MaxBytes/segmentShare) {
		w.end()
	}
	if w.seg == nil {
		f, err := os.OpenFile(segmentPath(w.dir, w.next), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND|trusted.NoFollow, 0o600)
		if err != nil {
			return failed(err)
		}
		w.seg = &segment{file: f, seq: w.next, began: running, dict: newInterned()}
		w.next++
	}
	recorded := false
	payload, err := wire.Alone(ctx, m.Body, func(body []byte) (payload []byte, err error) {
		data, err := wire.Decode(body)
		if err != nil {
			return nil, err
		}
		recorded = true
		if payload, err = w.seg.dict.record(data, &w.seg.summary); len(payload) > maxPayload {
			err = fmt.Errorf("a record of %d bytes exceeds %d: lower batch.max_request_size", len(payload), maxPayload)
		}
		return payload, err
	})
	if err != nil {
		if recorded {
			w.drop() // the dictionary counts the record's entries as written
		}
		return attempt.NotEncoded(err)
	}
	m.End = cmp.Or(m.End, now) // a time can be missing
	m.Start = cmp.Or(m.Start, m.End)
	m.Body = w.pack.EncodeAll(payload, nil)
	record := spool.AppendRecord(nil, m)
	w.prune(int64(len(record)))
	if _, err := w.seg.file.Write(record); err != nil {
		return failed(err)
	}
	w.seg.size += int64(len(record))
	w.seg.summary.merge(Summary{Start: m.Start, End: m.End, Records: 1, Rows: m.Rows})
	return attempt.Outcome{Verdict: attempt.Accepted, Sent: int64(len(record))}
}

// record encodes a request for a segment with this dictionary, and adds it to a summary. It changes the request. The result is a
// ProfilesData whose dictionary contains only what earlier records do not contain. After an error, the dictionary is unusable.
func (t *interned) record(data *profilespb.ProfilesData, sum *Summary) ([]byte, error) {
	c := newCopier(data.GetDictionary(), t)
	for p := range dictionary.Profiles(data) {
		sum.add(sumOf(c.from, p))
		for _, s := range p.Samples {
			s.StackIndex, s.LinkIndex, s.AttributeIndices = c.of(stack, s.StackIndex), c.of(link, s.LinkIndex), c.attributes(s.AttributeIndices)
			s.Values, s.TimestampsUnixNano = []int64{dictionary.Total(s)}, nil
		}
		head := c.head(p.Profile)
		p.SampleType, p.PeriodType, p.AttributeIndices, p.ProfileId = head.SampleType, head.PeriodType, head.AttributeIndices, nil
	}
	data.Dictionary, t.dict = t.dict, &profilespb.ProfilesDictionary{}
	return proto.Marshal(data)
}

// end writes the segment's summary and closes it. A segment without a summary is also readable.
func (w *Writer) end() {
	tail := encodeSummary(w.seg.summary)
	_, err := w.seg.file.Write(tail)
	if err == nil {
		w.seg.size += int64(len(tail))
		err = w.seg.file.Sync()
	}
	if err != nil {
		w.warn(fmt.Errorf("completing a file of the history (queries will take longer): %w", err))
	}
	w.drop()
}

// drop closes the segment. It truncates what follows the last complete write, for example after an error, and removes an empty
// segment. The next segment begins with its own dictionary.
func (w *Writer) drop() {
	s := w.seg
	if w.seg = nil; s == nil {
		return
	}
	err := s.file.Truncate(s.size)
	if s.size == 0 {
		err = os.Remove(s.file.Name())
	} else {
		w.keep(file{seq: s.seq, size: s.size, end: s.summary.End})
	}
	if err = errors.Join(err, s.file.Close()); err != nil {
		w.warn(fmt.Errorf("closing a file of the history: %w", err))
	}
}

// prune removes segments that are too old, and then the oldest segments until more bytes fit.
//
// The clock can be set, so two clocks must agree that a segment is too old. One is the time of day. The other is this process's
// monotonic time since it first saw the segment. So a change of the clock removes nothing. The limit max_bytes does not depend
// on a clock.
func (w *Writer) prune(more int64) {
	now, running := w.clock()
	total := onDisk(w.seg.size + more)
	for _, k := range w.old {
		total += onDisk(k.size)
	}
	w.old = slices.DeleteFunc(w.old, func(k file) bool {
		old := w.limit.MaxAge > 0 && running > max(settled, k.old) && now.Sub(k.end) > w.limit.MaxAge
		if !old && total <= w.limit.MaxBytes {
			return false
		}
		if err := os.Remove(segmentPath(w.dir, k.seq)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.warn(fmt.Errorf("removing an old file of the history: %w", err))
			return false
		}
		total -= onDisk(k.size)
		return true
	})
}

// Close ends the segment and unlocks the folder.
func (w *Writer) Close() error {
	if w.seg != nil {
		w.end()
	}
	return w.lock.Close()
}
