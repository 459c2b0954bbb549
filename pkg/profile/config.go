package profile

// Shape is the form of a sample's events.
type Shape uint8

const (
	// ShapeSum writes one summed value.
	ShapeSum Shape = iota
	// ShapeEvents writes a value and a timestamp per event.
	ShapeEvents
	// ShapeTimestamps writes timestamps only, as many as the value counts: for receivers that count timestamps. A type with
	// another unit than "count" gets one timestamp per event.
	ShapeTimestamps
	// ShapeSingle writes one summed value and the time of the last event.
	ShapeSingle
)

// Aggregation is the way from the rows of a sample to its value.
type Aggregation uint8

const (
	// AggregateSum adds rows up.
	AggregateSum Aggregation = iota
	// AggregateLast lets the newest row win.
	AggregateLast
	// AggregateSnapshot adds up rows of one snapshot (see StartSnapshot). The newest snapshot replaces the others as a whole: a
	// sample that it lacks has no value.
	AggregateSnapshot
)

// Config configures the output of an Aggregator.
type Config struct {
	Scope     Scope
	SchemaURL string
	// Types has one entry per value of a row; each becomes a profile of its own over a shared
	// dictionary. At least one.
	Types []ValueType
	// PeriodType and Period are the sampling period. If PeriodType is empty, each profile has its own sample type as period type
	// and a period of 1, because receivers refuse 0.
	PeriodType  ValueType
	Period      int64
	Aggregation Aggregation
	Shape       Shape
	// DefaultFrameType is the type of frames that have none; empty leaves them without.
	DefaultFrameType FrameType
	// HashedMappings leaves out every Mapping without an HTLHash.
	HashedMappings bool
	// TextAttributes writes every attribute value as text.
	TextAttributes bool
	// HostServices bounds how many groups of resources with Host are written as themselves; 0 means no bound. Groups
	// that were seen in the last hour stay; new ones with the largest values of a window take the room that is left.
	// All others become one resource.
	HostServices int
	// NameUnnamed gives a frame without a name a function called after its mapping's file.
	NameUnnamed bool
	// DoubleFunctions writes each function twice in a row, and lines refer to the second. It is for a receiver that reads the
	// entry before the right one. Against the protocol, which wants every entry once and referred to.
	DoubleFunctions bool
	// State means that values are the state at the end of a window, so profiles have no duration. It goes with ShapeSum only, as
	// timestamps lie within the time of a profile.
	State bool
	// NameLabel, if not empty, is the value of an attribute __name__ of all samples, and profiles have no period. It is for a
	// receiver that would use the period's type as the profile's name. Against the protocol's conventions.
	NameLabel string
	// MaxBytes bounds the memory of the dictionary and the window, by estimate; 0 means 64 MiB.
	// One resource can take half of it. Demangled names take up to a quarter more.
	MaxBytes int64
	// Demangle turns a symbol into a name to read. It is called at Flush, once per symbol and
	// generation. nil leaves symbols as they are.
	Demangle func(symbol string) string
	// NewID makes a profile_id; nil means 16 random bytes.
	NewID func() [16]byte
}

// Limits bound one message.
type Limits struct {
	// MaxBytes of a message, uncompressed; 0 means 3.5 MiB.
	MaxBytes int
	// MaxSamples in one profile; 0 means 16,000, Pyroscope's limit.
	MaxSamples int
	// Emit, if set, gets each message as soon as it is made, in the goroutine of Flush. Flushed has none then. Each message has
	// its own dictionary, so a window of deep stacks can become messages of many times its size. They are too many to hold at
	// once.
	Emit func(Message)
}
