package main

import (
	"encoding/hex"
	"slices"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// A Go program can store the span's IDs in these labels.
const (
	labelTrace = "trace_id"
	labelSpan  = "span_id"
	// maxLabel is the maximum length of a label value, in bytes.
	maxLabel = 128
)

// said holds the labels and the span that a program set for a thread, in a comparable form.
type said struct {
	labels string // result of joinLabels
	trace  libpf.APMTraceID
	span   libpf.APMSpanID
}

// wire converts s to the stream's format.
func (s *said) wire() wire.Said {
	return wire.Said{Labels: splitLabels(s.labels), TraceID: s.trace, SpanID: s.span}
}

// tell returns the requested labels and the span. The profiler reads the span's IDs from some programs. A Go program can store
// them in labels.
func (c *config) tell(labels map[libpf.String]libpf.String, trace libpf.APMTraceID, span libpf.APMSpanID) (k said) {
	var kept []wire.Label
	for name, v := range labels {
		key, value := name.String(), v.String()
		switch key {
		case labelTrace:
			decode(trace[:], value)
		case labelSpan:
			decode(span[:], value)
		}
		if slices.Contains(c.labels, key) {
			kept = append(kept, wire.Label{Key: key, Value: value})
		}
	}
	k.labels = joinLabels(kept)
	if c.spans && trace != libpf.InvalidAPMTraceID && span != libpf.InvalidAPMSpanID {
		k.trace, k.span = trace, span
	}
	return k
}

// decode decodes a hexadecimal number with dst's length into dst. It ignores other strings.
func decode(dst []byte, s string) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(dst) {
		copy(dst, b)
	}
}

// joinLabels encodes labels as one string. Equal labels give equal strings.
func joinLabels(labels []wire.Label) string {
	if len(labels) == 0 {
		return ""
	}
	slices.SortFunc(labels, func(a, b wire.Label) int { return strings.Compare(a.Key, b.Key) })
	var b strings.Builder
	for _, l := range labels[:min(len(labels), wire.MaxLabels)] {
		b.WriteString(l.Key)
		b.WriteByte(0)
		b.WriteString(strings.ReplaceAll(l.Value[:min(len(l.Value), maxLabel)], "\x00", ""))
		b.WriteByte(0)
	}
	return b.String()
}

// splitLabels decodes the result of joinLabels.
func splitLabels(text string) []wire.Label {
	var out []wire.Label
	for text != "" {
		var l wire.Label
		l.Key, text, _ = strings.Cut(text, "\x00")
		l.Value, text, _ = strings.Cut(text, "\x00")
		out = append(out, l)
	}
	return out
}
