package main

import (
	"slices"

	processcontext "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
)

// decodeContext returns the parts of a published context that package proccontext needs. It returns nothing if the context is
// invalid. If several attributes have the same key, the first one counts. Values must be strings.
func decodeContext(payload []byte) []byte {
	var c processcontext.ProcessContext
	if proto.Unmarshal(payload, &c) != nil {
		return nil
	}
	var values [len(proccontext.Keys)]string
	for _, a := range c.GetResource().GetAttributes() {
		if i := slices.Index(proccontext.Keys[:], a.GetKey()); i >= 0 && values[i] == "" {
			values[i] = a.GetValue().GetStringValue()
		}
	}
	return proccontext.Encode(values)
}
