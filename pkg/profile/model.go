package profile

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// FrameType is the kind of a frame's code. Its values are those of the semantic
// convention's profile.frame.type attribute
// (https://opentelemetry.io/docs/specs/semconv/registry/attributes/profile/).
// The zero value means unknown: no attribute is written.
type FrameType string

// The frame types that can be inferred from Inspektor Gadget's stacks.
const (
	FrameKernel FrameType = "kernel"
	FrameNative FrameType = "native"
	FrameGo     FrameType = "go"
)

// Mapping is the file from which a frame's code was loaded. The zero value means unknown and becomes mapping_index 0. Mapping is
// comparable; two frames share a Mapping of the message if and only if their values are equal.
type Mapping struct {
	// File is the path or name of the file, or a name in brackets such as [kernel.kallsyms].
	File string
	// GNUBuildID is the linker's build ID in lower-case hexadecimal.
	GNUBuildID string
	// GoBuildID is the Go toolchain's build ID.
	GoBuildID string
	// HTLHash is process.executable.build_id.htlhash in lower-case hexadecimal, 32 digits.
	HTLHash string
	// Start, Limit and FileOffset are memory_start, memory_limit and file_offset.
	Start, Limit, FileOffset uint64
	// Symbolized marks the Mapping of frames that carry a function name. Some receivers skip a
	// mapping that has functions when they symbolize, so symbolized and bare frames of one file
	// do not share one.
	Symbolized bool
}

// isZero compares with a zero Mapping, but faster, because it does not compare texts.
func (m *Mapping) isZero() bool {
	return m.File == "" && m.GNUBuildID == "" && m.GoBuildID == "" && m.HTLHash == "" &&
		m.Start|m.Limit|m.FileOffset == 0 && !m.Symbolized
}

// Frame is one entry of a call stack.
type Frame struct {
	// Name is the function's name in the symbol table (it may be mangled); empty if no symbol is known. It is never an address in
	// words.
	Name string
	// File and Line are the source position, empty and 0 if unknown.
	File string
	Line int64
	// StartLine is the line that the function begins at, 0 if unknown.
	StartLine int64
	// Address is the address within Mapping, 0 if unknown: see pkg/stack for its meaning in each kind of frame.
	Address uint64
	Mapping Mapping
	Type    FrameType
}

// start returns StartLine within the bounds of a line.
func (f *Frame) start() uint32 { return uint32(min(max(f.StartLine, 0), math.MaxInt32)) }

// ValueKind is the field of a Value that is set.
type ValueKind uint8

// The kinds of attribute values. They are those of OTLP's AnyValue that a profile needs.
const (
	KindString ValueKind = iota
	KindBool
	KindInt
	KindDouble
	KindBytes
	KindStrings
)

// Value is the value of an attribute. It is comparable, so that it can be a key. Make one with
// String, Bool, Int, Double, Bytes or Strings.
type Value struct {
	kind ValueKind
	num  uint64
	str  string
}

// String is a text value. Invalid UTF-8 is replaced when the value is encoded.
func String(s string) Value { return Value{kind: KindString, str: s} }

// Bool is a boolean value.
func Bool(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.num = 1
	}
	return v
}

// Int is an integer value.
func Int(i int64) Value { return Value{kind: KindInt, num: uint64(i)} }

// Double is a floating-point value.
func Double(f float64) Value { return Value{kind: KindDouble, num: math.Float64bits(f)} }

// Bytes is a value of raw bytes. It copies b.
func Bytes(b []byte) Value { return Value{kind: KindBytes, str: string(b)} }

// Strings is a list of text values. It copies list.
func Strings(list []string) Value {
	var b strings.Builder
	for _, s := range list {
		b.Write(binary.AppendUvarint(nil, uint64(len(s))))
		b.WriteString(s)
	}
	return Value{kind: KindStrings, str: b.String()}
}

// Kind returns the kind of the value.
func (v Value) Kind() ValueKind { return v.kind }

// AsString returns the text of a KindString or the bytes of a KindBytes value.
func (v Value) AsString() string { return v.str }

// AsInt returns the number of a KindInt value, and 0 or 1 of a KindBool one.
func (v Value) AsInt() int64 { return int64(v.num) }

// AsDouble returns the number of a KindDouble value.
func (v Value) AsDouble() float64 { return math.Float64frombits(v.num) }

// AsStrings returns the list of a KindStrings value.
func (v Value) AsStrings() []string {
	var list []string
	for b := v.str; len(b) > 0; {
		n, w := binary.Uvarint([]byte(b[:min(len(b), binary.MaxVarintLen64)]))
		if w <= 0 || uint64(len(b)-w) < n {
			return list
		}
		list = append(list, b[w:w+int(n)])
		b = b[w+int(n):]
	}
	return list
}

// Attribute is a key with a value.
type Attribute struct {
	Key   string
	Value Value
}

// Resource is the entity that samples belong to: a container, or the host. Attributes hold no
// key twice.
type Resource struct {
	Attributes []Attribute
	// Dropped counts attributes that were left out.
	Dropped int
	// Host marks one of several services outside containers, which share one memory bound and are
	// one owner of messages. Group is the service's number. Group 0 has processes without a service.
	Host  bool
	Group uint64
	// Rest are its attributes if it is not among the Config.HostServices services.
	Rest []Attribute
}

// Get returns the value of the attribute with that key.
func (r Resource) Get(key string) (Value, bool) {
	i := slices.IndexFunc(r.Attributes, func(a Attribute) bool { return a.Key == key })
	if i < 0 {
		return Value{}, false
	}
	return r.Attributes[i].Value, true
}

// Fate is the outcome of a stack.
type Fate uint8

// The fates of a stack.
const (
	// Whole: nothing is known to be missing.
	Whole Fate = iota
	// NoStack: there is no frame at all.
	NoStack
	// Lost: a part of it, the user's or the kernel's, did not arrive.
	Lost
	// Truncated: it reached the limit of depth, or the unwinder could not continue; the rest is missing.
	Truncated
	// Incomplete: its outermost function is not a known entry of programs and threads.
	Incomplete

	fates = int(Incomplete) + 1
)

// Fates counts rows by fate.
type Fates [fates]int64

// Link is the span that a sample was taken in. The zero value means none.
type Link struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// Sample is everything about a row but its values: samples with equal stack, attributes (as a
// set) and link within one resource are merged.
type Sample struct {
	// Stack is leaf first.
	Stack      []Frame
	Attributes []Attribute
	// Dropped counts attributes that were left out. It does not make samples distinct: that of the
	// first one stays.
	Dropped int
	Link    Link
	// Fate is the missing part of the stack. It does not make samples distinct; rows are counted by it.
	Fate Fate
	// Later, if not nil, is called for frames when the window ends. They take the place of Stack[LaterFrom:LaterTo].
	Later              Later
	LaterFrom, LaterTo int
}

// Later stands for frames with unknown names. It outlives the row and must not refer to its memory. It is asked in the goroutines
// that call Flush and Ask.
type Later interface {
	// Frames appends the currently known frames to dst, and reports whether more will be known. With last, there is no further
	// call. A fate other than Whole replaces a sample's Whole.
	Frames(dst []Frame, last bool) (frames []Frame, fate Fate, all bool)
	// Size is the memory that it takes, in bytes, by estimate.
	Size() int
}

// AskAgain is the Later of a stack that is used unchanged, and may differ in the next window. The row's key is forgotten when the
// window ends.
var AskAgain Later = askAgain{}

type askAgain struct{}

// Frames implements Later. There is nothing to wait for.
func (askAgain) Frames(dst []Frame, last bool) ([]Frame, Fate, bool) { return dst, Whole, !last }

// Size implements Later.
func (askAgain) Size() int { return 0 }

// ValueType names the meaning of a value, in pprof's words: type "cpu", unit "nanoseconds".
type ValueType struct {
	Type, Unit string
}

// Scope names the producer of the profiles: the gadget image.
type Scope struct {
	Name, Version string
}
