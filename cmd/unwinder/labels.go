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

// tell returns the requested labels and the span. The profiler reads the span's IDs from some programs. A Go program can store
// them in labels.
func (c *config) tell(labels map[libpf.String]libpf.String, trace libpf.APMTraceID, span libpf.APMSpanID) (s wire.Said) {
	for name, v := range labels {
		key, value := name.String(), v.String()
		switch key {
		case labelTrace:
			decode(trace[:], value)
		case labelSpan:
			decode(span[:], value)
		}
		if slices.Contains(c.labels, key) {
			s.Labels = append(s.Labels, wire.Label{Key: key, Value: strings.ReplaceAll(value[:min(len(value), maxLabel)], "\x00", "")})
		}
	}
	if c.spans && trace != libpf.InvalidAPMTraceID && span != libpf.InvalidAPMSpanID {
		s.TraceID, s.SpanID = trace, span
	}
	return s
}

// decode decodes a hexadecimal number with dst's length into dst. It ignores other strings.
func decode(dst []byte, s string) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(dst) {
		copy(dst, b)
	}
}
