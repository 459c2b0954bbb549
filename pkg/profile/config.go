package profile

// Shape is the form in which a sample's events are written.
type Shape uint8

const (
	// ShapeSum writes one summed value.
	ShapeSum Shape = iota
	// ShapeEvents writes a value and a timestamp per event.
	ShapeEvents
	// ShapeTimestamps only writes timestamps, for receivers that count them. Their number equals the value. For a type whose unit
	// is not "count", there is one timestamp per event.
	ShapeTimestamps
	// ShapeSingle writes one summed value and the time of the newest event.
	ShapeSingle
)

// Aggregation says how a sample's value results from its rows.
type Aggregation uint8

const (
	// AggregateSum adds rows.
	AggregateSum Aggregation = iota
	// AggregateLast keeps the newest row.
	AggregateLast
	// AggregateSnapshot adds the rows of one snapshot (see Snapshot). The newest snapshot replaces all others: a sample
	// that it lacks has no value.
	AggregateSnapshot
)

// Config configures the output of an Aggregator.
type Config struct {
	Scope     Scope
	SchemaURL string
	// Types holds one entry per value of a row, and at least one entry. Each type becomes its own profile. The profiles share a
	// dictionary.
	Types []ValueType
	// PeriodType and Period are the sampling period. If PeriodType is empty, each profile has its own sample type as period
	// type, and period 1, because receivers refuse 0.
	PeriodType  ValueType
	Period      int64
	Aggregation Aggregation
	Shape       Shape
	// DefaultFrameType is the type of frames without a type. If it is empty, they stay without.
	DefaultFrameType FrameType
	// HashedMappings omits every Mapping without an HTLHash.
	HashedMappings bool
	// TextAttributes writes every attribute value as text.
	TextAttributes bool
	// HostServices limits how many groups of resources with Host keep their attributes. 0 means no limit. Groups that were seen
	// in the last hour keep theirs. The new groups with the largest values in a window get the free places. All other groups
	// become one resource.
	HostServices int
	// NameUnnamed names a function after its mapping's file if the frame has no name.
	NameUnnamed bool
	// DoubleFunctions writes each function twice, and lines refer to the second entry. It is for a receiver that reads the entry
	// before the right one. This violates the protocol, which requires that entries are unique and referenced.
	DoubleFunctions bool
	// State means that values describe the state at the end of a window, so profiles have no duration. It requires ShapeSum,
	// because timestamps must be within a profile's time.
	State bool
	// If NameLabel is not empty, all samples get an attribute __name__ with this value, and profiles have no period. It is for a
	// receiver that would use the period type as the profile's name. This violates the protocol's conventions.
	NameLabel string
	// MaxBytes limits the estimated memory of the dictionary and the window. 0 means 64 MiB. One resource can take half of this
	// limit. Demangled names take up to a quarter more.
	MaxBytes int64
	// Demangle turns a symbol into a readable name. Flush calls it once per symbol and generation. nil keeps symbols as they
	// are.
	Demangle func(symbol string) string
}

// Limits limit one message.
type Limits struct {
	// MaxBytes limits a message before compression. 0 means 3.5 MiB.
	MaxBytes int
	// MaxSamples limits the samples of one profile. 0 means 16,000, which is Pyroscope's limit.
	MaxSamples int
	// Emit, if not nil, receives each message as soon as it is complete, in the goroutine of Flush. Flushed then contains none.
	// Each message has its own dictionary. So for a window with deep stacks, all messages together can take many times the
	// window's memory.
	Emit func(Message)
}
