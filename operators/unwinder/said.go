package unwinder

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	metadatav1 "github.com/inspektor-gadget/inspektor-gadget/pkg/metadata/v1"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// maxSpans limits the spans in the rows of one packet.
const maxSpans = 1000

// said holds the trace, span and labels that a program set for a thread. It contains only the parts that the run needs, and is
// comparable.
type said struct {
	trace  [16]byte
	span   [8]byte
	labels string // the values of sayings.labels, each followed by a zero byte
}

// sayings describes which parts of said a run needs, and which row fields hold them. It is not safe for concurrent use.
type sayings struct {
	spans  bool
	labels []string

	seen     map[[8]byte]struct{} // spans that were used since the last packet
	unlinked uint64               // events that lost their span because there were too many spans

	trace, span datasource.FieldAccessor
	fields      []datasource.FieldAccessor // row fields for the labels
}

// register adds these fields to a data source.
func (s *sayings) register(ds datasource.DataSource) error {
	var err error
	if s.spans {
		for _, f := range []struct {
			dst              *datasource.FieldAccessor
			name, annotation string
		}{{&s.trace, "trace_id", "profiles.trace-id"}, {&s.span, "span_id", "profiles.span-id"}} {
			annotations := datasource.WithAnnotations(map[string]string{f.annotation: "true", metadatav1.ColumnsHiddenAnnotation: "true"})
			if *f.dst, err = ds.AddField(f.name, api.Kind_String, annotations); err != nil {
				return fmt.Errorf("field %q: %w", f.name, err)
			}
		}
	}
	if len(s.labels) == 0 {
		return nil
	}
	group, err := ds.AddField("label", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty))
	if err != nil {
		return err
	}
	for _, l := range s.labels {
		field, err := group.AddSubField(l, api.Kind_String, datasource.WithAnnotations(map[string]string{"profiles.sample-attribute": l}))
		if err != nil {
			return fmt.Errorf("field %q: %w", "label."+l, err)
		}
		s.fields = append(s.fields, field)
	}
	return nil
}

// of returns the parts of w that a run needs. Programs can create any number of spans. Above maxSpans, events lose their spans.
func (s *sayings) of(w *wire.Said) (k said) {
	for _, name := range s.labels {
		for _, l := range w.Labels {
			if l.Key == name {
				k.labels += l.Value
			}
		}
		k.labels += "\x00"
	}
	if !s.spans || w.TraceID == [16]byte{} {
		return k
	}
	if _, known := s.seen[w.SpanID]; !known && len(s.seen) >= maxSpans {
		s.unlinked++
		return k
	}
	if s.seen == nil {
		s.seen = map[[8]byte]struct{}{}
	}
	s.seen[w.SpanID] = struct{}{}
	k.trace, k.span = w.TraceID, w.SpanID
	return k
}

// put writes k into a row.
func (s *sayings) put(d datasource.Data, k said) {
	if k.trace != [16]byte{} {
		_ = s.trace.PutString(d, hex.EncodeToString(k.trace[:]))
		_ = s.span.PutString(d, hex.EncodeToString(k.span[:]))
	}
	rest := k.labels
	for _, field := range s.fields {
		var value string
		value, rest, _ = strings.Cut(rest, "\x00")
		_ = field.PutString(d, value)
	}
}
