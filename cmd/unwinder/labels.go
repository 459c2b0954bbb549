package main

import (
	"encoding/hex"
	"slices"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// The labels that a Go program gives the IDs of its span under.
const (
	labelTrace = "trace_id"
	labelSpan  = "span_id"
)

// labelsOf returns a sample's labels as a text that is equal for equal ones, and its span, which may be
// among them.
func labelsOf(labels map[libpf.String]libpf.String, trace libpf.APMTraceID, span libpf.APMSpanID) (string, libpf.APMTraceID, libpf.APMSpanID) {
	if len(labels) == 0 {
		return "", trace, span
	}
	var list []string
	for k, v := range labels {
		key, value := k.String(), v.String()
		switch {
		case key == labelTrace && decode(trace[:], value), key == labelSpan && decode(span[:], value):
		default:
			list = append(list, clipLabel(key)+"\x00"+clipLabel(value))
		}
	}
	slices.Sort(list)
	return strings.Join(list[:min(len(list), wire.MaxLabels)], "\x00"), trace, span
}

func decode(dst []byte, s string) bool {
	if len(s) != hex.EncodedLen(len(dst)) {
		return false
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// clipLabel makes room for the separator, and bounds what a program says.
func clipLabel(s string) string {
	return strings.ReplaceAll(s[:min(len(s), 128)], "\x00", "")
}

// labelList turns the text of labelsOf into labels.
func labelList(text string) []wire.Label {
	var out []wire.Label
	for text != "" {
		var l wire.Label
		l.Key, text, _ = strings.Cut(text, "\x00")
		l.Value, text, _ = strings.Cut(text, "\x00")
		out = append(out, l)
	}
	return out
}
