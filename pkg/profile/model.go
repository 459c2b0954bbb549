package profile

import "math"

// FrameType is the kind of a frame's code. Its values come from the attribute profile.frame.type in the semantic conventions
// (https://opentelemetry.io/docs/specs/semconv/registry/attributes/profile/). The zero value means unknown, and no attribute is
// written.
type FrameType string

// These frame types can be inferred from Inspektor Gadget's stacks.
const (
	FrameKernel FrameType = "kernel"
	FrameNative FrameType = "native"
	FrameGo     FrameType = "go"
)

// Mapping is the file from which a frame's code was loaded. The zero value means unknown and becomes mapping_index 0. Mapping
// is comparable. Two frames share a mapping in the message if and only if their Mappings are equal.
type Mapping struct {
	// File is the path or name of the file, or a name in brackets like [kernel.kallsyms].
	File string
	// GNUBuildID is the linker's build ID in lower-case hexadecimal.
	GNUBuildID string
	// GoBuildID is the Go toolchain's build ID.
	GoBuildID string
	// HTLHash is process.executable.build_id.htlhash in lower-case hexadecimal, 32 digits.
	HTLHash string
	// Symbolized marks the Mapping of frames with a function name. Some receivers do not symbolize mappings that have functions.
	// So named and unnamed frames of one file do not share a mapping.
	Symbolized bool
}

// isZero reports whether m is the zero Mapping. It is faster than == because it does not compare texts.
func (m *Mapping) isZero() bool {
	return m.File == "" && m.GNUBuildID == "" && m.GoBuildID == "" && m.HTLHash == "" && !m.Symbolized
}

// Frame is one entry of a call stack.
type Frame struct {
	// Name is the function's name in the symbol table, which can be mangled, or "" if no symbol is known. It is never an
	// address.
	Name string
	// File and Line are the source position. If it is unknown, File is empty and Line is 0.
	File string
	Line int64
	// StartLine is the function's first line, or 0 if that is unknown.
	StartLine int64
	// Address is the address within Mapping, or 0 if it is unknown. See pkg/stack for the meaning in each kind of frame. The
	// mapping's memory_start and file_offset are 0 in messages, so backends do not adjust the address.
	Address uint64
	Mapping Mapping
	Type    FrameType
}

// start returns StartLine, limited to valid lines.
func (f *Frame) start() uint32 { return uint32(min(max(f.StartLine, 0), math.MaxInt32)) }

// ValueKind is the type of a Value.
type ValueKind uint8

// These are the kinds of attribute values: the kinds in OTLP's AnyValue that profiles need.
const (
	KindString ValueKind = iota
	KindBool
	KindInt
	KindDouble
	KindBytes
	KindTexts
)

// Value is the value of an attribute. It is comparable, so it can be a map key. Create it with String, Bool, Int, Double, Bytes
// or Texts.
type Value struct {
	kind ValueKind
	num  uint64
	str  string
}

// String returns a text value. Encoding replaces invalid UTF-8.
func String(s string) Value { return Value{kind: KindString, str: s} }

// Bool returns a boolean value.
func Bool(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.num = 1
	}
	return v
}

// Int returns an integer value.
func Int(i int64) Value { return Value{kind: KindInt, num: uint64(i)} }

// Double returns a floating-point value.
func Double(f float64) Value { return Value{kind: KindDouble, num: math.Float64bits(f)} }

// Bytes returns a value of raw bytes. It copies b.
func Bytes(b []byte) Value { return Value{kind: KindBytes, str: string(b)} }

// Texts returns a list with one text, for attributes that the semantic conventions define as lists.
func Texts(s string) Value { return Value{kind: KindTexts, str: s} }

// Kind returns the kind of the value.
func (v Value) Kind() ValueKind { return v.kind }

// AsString returns the text of a KindString or KindTexts value, or the bytes of a KindBytes value.
func (v Value) AsString() string { return v.str }

// AsInt returns the number of a KindInt value, or 0 or 1 for a KindBool value.
func (v Value) AsInt() int64 { return int64(v.num) }

// AsDouble returns the number of a KindDouble value.
func (v Value) AsDouble() float64 { return math.Float64frombits(v.num) }

// Attribute is a key with a value.
type Attribute struct {
	Key   string
	Value Value
}

// Resource is the entity that samples belong to, for example a container or the host. Attributes contains no duplicate keys.
type Resource struct {
	Attributes []Attribute
	// Dropped counts attributes that were dropped.
	Dropped int
	// Host marks a service outside containers. All such services share one memory limit and are one owner of messages. Group is
	// the service's number. Group 0 contains the processes without a service.
	Host  bool
	Group uint64
	// Rest replaces Attributes if the service is not among the Config.HostServices services.
	Rest []Attribute
}

// Fate is the outcome of a stack.
type Fate uint8

// These are the fates of a stack.
const (
	// Whole means that nothing is known to be missing.
	Whole Fate = iota
	// NoStack means that there are no frames.
	NoStack
	// Lost means that the user stack or the kernel stack did not arrive.
	Lost
	// Truncated means that the stack reached the depth limit or that the unwinder could not continue. The rest is missing.
	Truncated
	// Incomplete means that the outermost function is not a known entry point of programs and threads.
	Incomplete

	fates = int(Incomplete) + 1
)

// Fates counts rows by fate.
type Fates [fates]int64

// Link is the span in which a sample was taken. The zero value means no span.
type Link struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// Sample is everything in a row except its values. Samples of one resource are merged if their stack, attributes (as a set) and
// link are equal.
type Sample struct {
	// Stack is leaf first.
	Stack      []Frame
	Attributes []Attribute
	// Dropped counts attributes that were dropped. It does not make samples distinct, and the first sample's value is kept.
	Dropped int
	Link    Link
	// Fate says which part of the stack is missing. It does not make samples distinct. Fates counts rows by it.
	Fate Fate
	// Later, if not nil, provides frames when the window ends. They replace Stack[LaterFrom:LaterTo].
	Later              Later
	LaterFrom, LaterTo int
}

// Later represents frames with unknown names. It outlives the row and must not refer to the row's memory. Its methods are
// called in the goroutines of Flush and Ask.
type Later interface {
	// Frames appends the currently known frames to dst, and reports whether they are complete. With last, there is no further
	// call. A fate other than Whole replaces the sample's fate Whole.
	Frames(dst []Frame, last bool) (frames []Frame, fate Fate, all bool)
	// Size estimates the memory in bytes.
	Size() int
}

// AskAgain is the Later of a stack that is used unchanged but can differ in the next window. The row's key is forgotten when
// the window ends.
var AskAgain Later = askAgain{}

type askAgain struct{}

// Frames implements Later. There is nothing to wait for.
func (askAgain) Frames(dst []Frame, last bool) ([]Frame, Fate, bool) { return dst, Whole, !last }

// Size implements Later.
func (askAgain) Size() int { return 0 }

// ValueType is the meaning of a value in pprof's terms, for example type "cpu" and unit "nanoseconds".
type ValueType struct {
	Type, Unit string
}

// Scope names the producer of the profiles: the gadget image.
type Scope struct {
	Name, Version string
}
