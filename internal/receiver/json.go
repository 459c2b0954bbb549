package receiver

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// ids are in hexadecimal in OTLP's JSON, and in base64 in protobuf's:
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. Text in a value cannot match, because a backslash precedes its
// quotes.
var ids = regexp.MustCompile(`("(?:traceId|spanId|profileId)"\s*:\s*)"((?:[0-9a-fA-F]{2})+)"`)

// maxLine is the longest line that ReadJSONLines takes.
const maxLine = 512 << 20

// WriteJSONLine writes a request as one line of OTLP JSON.
func WriteJSONLine(w io.Writer, req *collectorpb.ExportProfilesServiceRequest) error {
	b, err := wire.MarshalJSON(req)
	if err != nil {
		return fmt.Errorf("encoding a request as JSON: %w", err)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("writing a request: %w", err)
	}
	return nil
}

// ParseJSON reads a request from OTLP JSON, or from the variant of the Collector's file exporter. An ID can be in protobuf's
// base64 if it cannot be hexadecimal. Unknown fields are skipped.
func ParseJSON(b []byte) (*collectorpb.ExportProfilesServiceRequest, error) {
	b = ids.ReplaceAllFunc(b, func(field []byte) []byte {
		parts := ids.FindSubmatch(field)
		id, _ := hex.AppendDecode(nil, parts[2])
		return fmt.Appendf(nil, "%s%q", parts[1], base64.StdEncoding.EncodeToString(id))
	})
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, req); err != nil {
		return nil, fmt.Errorf("decoding OTLP JSON: %w", err)
	}
	return req, nil
}

// ReadJSONLines reads requests, one per line, as WriteJSONLine and the Collector's file exporter
// write them. Empty lines are skipped. An incomplete last line is an error that names its line number.
func ReadJSONLines(r io.Reader) ([]*collectorpb.ExportProfilesServiceRequest, error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	var reqs []*collectorpb.ExportProfilesServiceRequest
	line := 0
	for s.Scan() {
		line++
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 {
			continue
		}
		req, err := ParseJSON(text)
		if err != nil {
			return reqs, fmt.Errorf("line %d: %w", line, err)
		}
		reqs = append(reqs, req)
	}
	if err := s.Err(); err != nil {
		return reqs, fmt.Errorf("line %d: %w", line+1, err)
	}
	return reqs, nil
}
