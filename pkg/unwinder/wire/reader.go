package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// stackIDs is the last Stack.ID that was assigned.
var stackIDs atomic.Uint64

// Reader reads a stream. It is not safe for concurrent use. Callers can keep and share its results, but must not change them.
type Reader struct {
	r       *bufio.Reader
	started bool
	buf     []byte
	msg     []byte // the rest of the message
	bad     string // the first error in the message, or ""

	texts    []string
	textSize int
	files    []*File
	mappings []*Mapping
	frames   []*Frame
	stacks   []*Stack
	links    int
	procs    []*Proc
	unwound  []Unwound
	size     int // since the last flush: see Flush.Size
}

// NewReader returns a Reader that reads from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, flushSize)}
}

// Event is the result of Next. One of its members is set.
type Event struct {
	// Hello reports that the unwinder works here. Refused is the reason if it does not.
	Hello   bool
	Refused string
	Ready   *Ready
	Flush   *Flush
}

// Flush holds all events since the previous Flush.
type Flush struct {
	Unwound []Unwound
	Stats   Stats
	// Size is the estimated memory of the events in bytes, including stacks and texts.
	Size int
}

// These are estimated sizes in memory in bytes: of a text, another table entry, a stack's frame, a label, and an unwound event.
const (
	textBytes, entryBytes, linkBytes, labelBytes, unwoundBytes = 32, 128, 8, 32, 72
)

// Next reads up to the next event. It returns io.EOF at the end of the stream, ErrProtocol if the stream is damaged, and
// otherwise the error of the io.Reader.
func (r *Reader) Next() (Event, error) {
	if !r.started {
		head := make([]byte, len(Magic)+1)
		if _, err := io.ReadFull(r.r, head); err != nil {
			return Event{}, ended(err)
		}
		if string(head[:len(Magic)]) != Magic {
			return Event{}, fmt.Errorf("%w: it starts with %q", ErrProtocol, head)
		}
		if v := head[len(Magic)]; v != Version {
			return Event{}, fmt.Errorf("%w: the unwinder speaks version %d of the protocol, this program version %d: install both from the same release", ErrProtocol, v, Version)
		}
		r.started = true
	}
	for {
		n, err := binary.ReadUvarint(r.r)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return Event{}, ended(err)
			}
			return Event{}, fmt.Errorf("%w: reading a length: %w", ErrProtocol, err)
		}
		if n == 0 || n > MaxMessage {
			return Event{}, fmt.Errorf("%w: a message of %d bytes", ErrProtocol, n)
		}
		if uint64(cap(r.buf)) < n {
			r.buf = make([]byte, n)
		}
		r.buf = r.buf[:n]
		if _, err := io.ReadFull(r.r, r.buf); err != nil {
			return Event{}, ended(err)
		}
		r.msg, r.bad = r.buf[1:], ""
		if r.grow(Kind(r.buf[0]), int(n)); r.size > MaxFlushSize {
			return Event{}, fmt.Errorf("%w: more than %d MiB without a flush", ErrProtocol, MaxFlushSize>>20)
		}
		ev, done := r.message(Kind(r.buf[0]))
		if r.bad == "" && len(r.msg) > 0 {
			r.bad = "more bytes than fields"
		}
		if r.bad != "" {
			return Event{}, fmt.Errorf("%w: invalid message of kind %d: %s", ErrProtocol, r.buf[0], r.bad)
		}
		if done {
			return ev, nil
		}
	}
}

// ended returns io.EOF if a stream ends within a message. A killed writer leaves such a stream.
func ended(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

// grow adds the memory of a message of n bytes. message adds the memory of a stack, because it knows the depth.
func (r *Reader) grow(kind Kind, n int) {
	switch kind {
	case KindText:
		r.size += textBytes + n
	case KindFile, KindMapping, KindFrame, KindProc:
		r.size += entryBytes
	case KindUnwound:
		r.size += unwoundBytes + labelBytes*min(n/2, MaxLabels)
	}
}

// fail records an error in the message. Only the first error is kept.
func (r *Reader) fail(what string) {
	if r.bad == "" {
		r.bad = what
	}
}

func (r *Reader) num() uint64 {
	n, w := binary.Uvarint(r.msg)
	if w <= 0 {
		r.fail("a truncated number")
		r.msg = nil
		return 0
	}
	r.msg = r.msg[w:]
	return n
}

func (r *Reader) num32() uint32 {
	n := r.num()
	if n > math.MaxUint32 {
		r.fail("a number out of range")
		return 0
	}
	return uint32(n)
}

// bytes returns the next n bytes of the message, or zeros if there are fewer. They are valid until the next message.
func (r *Reader) bytes(n int) []byte {
	if len(r.msg) < n {
		r.fail("too few bytes")
		r.msg = nil
		return make([]byte, n)
	}
	b := r.msg[:n]
	r.msg = r.msg[n:]
	return b
}

// count reads the number of items that follow. Each has at least one byte.
func (r *Reader) count(limit int) int {
	n := r.num()
	if n > uint64(limit) || n > uint64(len(r.msg)) {
		r.fail("too many entries")
		return 0
	}
	return int(n)
}

const noEntry = "an ID outside its table"

// entry reads an ID and returns its entry in the table, or a zero value for 0. wrong is the error for another ID.
func entry[T any](r *Reader, table []T, wrong string) (v T) {
	switch id := r.num(); {
	case id > uint64(len(table)):
		r.fail(wrong)
	case id > 0:
		v = table[id-1]
	}
	return v
}

// add appends an entry to a table of at most limit entries.
func add[T any](r *Reader, table *[]*T, limit int, v *T) {
	if len(*table) >= limit {
		r.fail("too many table entries")
		return
	}
	*table = append(*table, v)
}

// text reads the ID of a text and returns that text.
func (r *Reader) text() string { return entry(r, r.texts, "an ID without a text") }

// message parses the fields of a message into the tables. done reports that the message completes an Event.
func (r *Reader) message(kind Kind) (_ Event, done bool) {
	switch kind {
	case KindHello:
		return Event{Hello: true}, true
	case KindRefused:
		if len(r.msg) == 0 || len(r.msg) > MaxText {
			r.fail("a refusal without a valid reason")
			return Event{}, false
		}
		ev := Event{Refused: printable.Clean(string(r.msg))}
		r.msg = nil
		return ev, true
	case KindReady:
		ready := Ready{StartMillis: r.num()}
		return Event{Ready: &ready}, true
	case KindText:
		if len(r.msg) > MaxText || len(r.texts) >= MaxTexts || r.textSize+len(r.msg) > MaxTextSize {
			r.fail("too much text")
			return Event{}, false
		}
		r.textSize += len(r.msg)
		r.texts = append(r.texts, printable.Clean(string(r.msg)))
		r.msg = nil
	case KindFile:
		f := &File{Name: r.text(), Path: r.text(), GNUBuildID: r.text(), GoBuildID: r.text()}
		copy(f.Hash[:], r.bytes(len(f.Hash)))
		f.hash = hex.EncodeToString(f.Hash[:])
		copy(f.Version[:], r.bytes(len(f.Version)))
		f.Device, f.Inode, f.Proc, f.Low, f.High = r.num(), r.num(), r.num32(), r.num(), r.num()
		if !isHex(f.GNUBuildID) {
			f.GNUBuildID = ""
		}
		add(r, &r.files, MaxFiles, f)
	case KindMapping:
		add(r, &r.mappings, MaxMappings, &Mapping{File: entry(r, r.files, noEntry), Start: r.num(), End: r.num(), Offset: r.num()})
	case KindFrame:
		f := &Frame{Type: FrameType(r.bytes(1)[0])}
		if f.Type >= frameEnd {
			f.Type = FrameUnknown
		}
		f.Function, f.File, f.Line, f.Address = r.text(), r.text(), r.num(), r.num()
		f.Mapping = entry(r, r.mappings, noEntry)
		add(r, &r.frames, MaxFrames, f)
	case KindStack:
		s := &Stack{Abort: r.num32()}
		n := r.count(MaxDepth)
		if r.links += n; r.links > MaxLinks {
			r.fail("too many frames")
			return Event{}, false
		}
		r.size += entryBytes + linkBytes*n
		s.Frames = make([]*Frame, 0, n)
		for range n {
			if f := entry(r, r.frames, noEntry); f != nil {
				s.Frames = append(s.Frames, f)
			} else {
				r.fail("a stack with unknown frames")
				return Event{}, false
			}
		}
		s.ID = stackIDs.Add(1)
		add(r, &r.stacks, MaxStacks, s)
	case KindProc:
		add(r, &r.procs, MaxProcs, &Proc{PID: r.num32(), Start: r.num(), MntNS: r.num(), Exe: r.text()})
	case KindFlush:
		f := &Flush{Unwound: r.unwound, Size: r.size}
		r.unwound, r.size = nil, 0
		r.stats(&f.Stats)
		return Event{Flush: f}, true
	case KindReset:
		r.texts, r.files, r.mappings, r.frames, r.stacks, r.procs = nil, nil, nil, nil, nil, nil
		r.textSize, r.links = 0, 0
	case KindUnwound:
		u := Unwound{ID: r.num(), Stack: entry(r, r.stacks, noEntry), Proc: entry(r, r.procs, noEntry)}
		u.Said = r.said()
		switch {
		case len(r.unwound) >= MaxUnwound:
			r.fail("too many events")
		case u.Stack == nil || u.Proc == nil:
			r.fail("an event without stack or process")
		default:
			r.unwound = append(r.unwound, u)
		}
	default:
		r.fail("an unknown kind")
	}
	return Event{}, false
}

func (r *Reader) said() (s Said) {
	for range r.count(MaxLabels) {
		s.Labels = append(s.Labels, Label{Key: r.text(), Value: r.text()})
	}
	if r.bytes(1)[0] != 0 {
		copy(s.TraceID[:], r.bytes(len(s.TraceID)))
		copy(s.SpanID[:], r.bytes(len(s.SpanID)))
	}
	return s
}

func (r *Reader) stats(s *Stats) {
	for _, n := range []*uint64{&s.Taken, &s.Full, &s.Failed, &s.Idle, &s.KernelLost, &s.NoProcess, &s.KernelMemory} {
		*n = r.num()
	}
	n := r.count(MaxReasons)
	s.Aborts = make(map[uint32]uint64, n)
	for range n {
		reason := r.num32()
		s.Aborts[reason] = r.num()
	}
	if r.count(FrameTypes) != FrameTypes {
		r.fail("the wrong number of languages")
		return
	}
	for i := range s.Languages {
		l := &s.Languages[i]
		l.Frames, l.Expected, l.Missing = r.num(), r.num(), r.num()
	}
}

// isHex reports whether s is empty or a lower-case hexadecimal number of at most 128 digits.
func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) <= 128
}
