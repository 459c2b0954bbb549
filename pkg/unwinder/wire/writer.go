package wire

import (
	"encoding/binary"
	"io"
	"maps"
	"slices"
)

// Writer writes messages into a buffer. It writes the buffer to an io.Writer when it is large, or with Flush. It assigns the
// IDs. It is not safe for concurrent use. After an error it writes nothing more.
type Writer struct {
	w   io.Writer
	buf []byte
	msg []byte
	err error

	texts                           map[string]uint64
	textSize                        int
	files, mappings, frames, stacks uint32
	links, procs                    uint32
}

// NewWriter returns a Writer that starts its stream on w.
func NewWriter(w io.Writer) *Writer {
	out := &Writer{w: w, texts: map[string]uint64{}}
	out.buf = append(out.buf, Magic...)
	out.buf = append(out.buf, Version)
	return out
}

// flushSize is the size at which the buffer is written.
const flushSize = 64 << 10

// send appends the message whose fields are in msg to the buffer.
func (w *Writer) send(kind Kind) {
	w.buf = binary.AppendUvarint(w.buf, uint64(len(w.msg)+1))
	w.buf = append(w.buf, byte(kind))
	w.buf = append(w.buf, w.msg...)
	w.msg = w.msg[:0]
	if len(w.buf) >= flushSize {
		w.write()
	}
}

func (w *Writer) write() {
	if w.err == nil && len(w.buf) > 0 {
		_, w.err = w.w.Write(w.buf)
	}
	w.buf = w.buf[:0]
}

// Flush writes the buffer and returns the first error of the stream.
func (w *Writer) Flush() error {
	w.write()
	return w.err
}

// entry sends a table entry and returns its ID. n is the number of entries in the table.
func (w *Writer) entry(kind Kind, n *uint32) uint32 {
	w.send(kind)
	*n++
	return *n
}

// nums appends numbers to the message.
func (w *Writer) nums(list ...uint64) {
	for _, n := range list {
		w.msg = binary.AppendUvarint(w.msg, n)
	}
}

// text returns a text's ID, and writes the text if it is new. Longer texts are cut at MaxText.
func (w *Writer) text(s string) uint64 {
	if s == "" {
		return 0
	}
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	if id, ok := w.texts[s]; ok {
		return id
	}
	id := uint64(len(w.texts) + 1)
	w.texts[s] = id
	w.textSize += len(s)
	// The text's message goes directly into buf, because msg may hold the first fields of another message.
	w.buf = binary.AppendUvarint(w.buf, uint64(len(s)+1))
	w.buf = append(w.buf, byte(KindText))
	w.buf = append(w.buf, s...)
	return id
}

// Fits reports whether the tables have room for a stack of n new frames with a process and labels. Reset makes room.
func (w *Writer) Fits(n int) bool {
	more := uint32(n) + 1
	return len(w.texts)+2*n+2*MaxLabels+8 < MaxTexts && w.textSize+(2*n+2*MaxLabels+8)*MaxText < MaxTextSize &&
		w.files+more < MaxFiles && w.mappings+more < MaxMappings && w.frames+more < MaxFrames &&
		w.stacks+1 < MaxStacks && w.links+more < MaxLinks && w.procs+1 < MaxProcs
}

// Reset empties all tables. Earlier IDs become invalid.
func (w *Writer) Reset() {
	clear(w.texts)
	w.textSize, w.files, w.mappings, w.frames, w.stacks, w.links, w.procs = 0, 0, 0, 0, 0, 0, 0
	w.send(KindReset)
}

// Hello reports that the unwinder works here, or the reason if it does not.
func (w *Writer) Hello(refused string) {
	if refused == "" {
		w.send(KindHello)
		return
	}
	w.msg = append(w.msg, refused[:min(len(refused), MaxText)]...)
	w.send(KindRefused)
}

// Ready writes a KindReady.
func (w *Writer) Ready(r Ready) {
	w.nums(r.StartMillis)
	w.send(KindReady)
}

// File adds a file and returns its ID.
func (w *Writer) File(f *File) uint32 {
	w.nums(w.text(f.Name), w.text(f.Path), w.text(f.GNUBuildID), w.text(f.GoBuildID))
	w.msg = append(append(w.msg, f.Hash[:]...), f.Version[:]...)
	w.nums(f.Device, f.Inode, uint64(f.Proc), f.Low, f.High)
	return w.entry(KindFile, &w.files)
}

// Mapping adds a mapping of a file and returns its ID. The file's ID may be 0.
func (w *Writer) Mapping(file uint32, start, end, offset uint64) uint32 {
	w.nums(uint64(file), start, end, offset)
	return w.entry(KindMapping, &w.mappings)
}

// Frame adds a frame in a mapping and returns its ID. The mapping's ID may be 0. Frame does not read f.Mapping.
func (w *Writer) Frame(f *Frame, mapping uint32) uint32 {
	w.msg = append(w.msg, byte(f.Type))
	w.nums(w.text(f.Function), w.text(f.File), f.Line, f.Address, uint64(mapping))
	return w.entry(KindFrame, &w.frames)
}

// Stack adds a stack and returns its ID. It cuts frames over MaxDepth at the outer end.
func (w *Writer) Stack(frames []uint32, abort uint32) uint32 {
	frames = frames[:min(len(frames), MaxDepth)]
	w.nums(uint64(abort), uint64(len(frames)))
	for _, id := range frames {
		w.msg = binary.AppendUvarint(w.msg, uint64(id))
	}
	w.links += uint32(len(frames))
	return w.entry(KindStack, &w.stacks)
}

// Proc adds a process and returns its ID.
func (w *Writer) Proc(p Proc) uint32 {
	w.nums(uint64(p.PID), p.Start, p.MntNS, w.text(p.Exe))
	return w.entry(KindProc, &w.procs)
}

// said appends labels and span. Labels over MaxLabels are dropped.
func (w *Writer) said(s *Said) {
	labels := s.Labels[:min(len(s.Labels), MaxLabels)]
	w.nums(uint64(len(labels)))
	for _, l := range labels {
		w.nums(w.text(l.Key), w.text(l.Value))
	}
	if s.TraceID != [16]byte{} {
		w.msg = append(append(append(w.msg, 1), s.TraceID[:]...), s.SpanID[:]...)
	} else {
		w.msg = append(w.msg, 0)
	}
}

// Unwound adds the stack of a gadget's event. stack and proc are IDs.
func (w *Writer) Unwound(id uint64, stack, proc uint32, s *Said) {
	w.nums(id, uint64(stack), uint64(proc))
	w.said(s)
	w.send(KindUnwound)
}

// Stats writes the KindFlush that ends a flush, with the counters.
func (w *Writer) Stats(s *Stats) {
	w.nums(s.Taken, s.Full, s.Failed, s.Idle, s.KernelLost, s.NoProcess, s.KernelMemory)
	reasons := slices.Sorted(maps.Keys(s.Aborts))
	reasons = reasons[:min(len(reasons), MaxReasons)]
	w.nums(uint64(len(reasons)))
	for _, r := range reasons {
		w.nums(uint64(r), s.Aborts[r])
	}
	w.nums(uint64(FrameTypes))
	for _, l := range s.Languages {
		w.nums(l.Frames, l.Expected, l.Missing)
	}
	w.send(KindFlush)
}
