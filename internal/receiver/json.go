package receiver

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// idFields are in hexadecimal in OTLP's JSON, and in base64 in protobuf's:
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
var idFields = map[string]bool{"traceId": true, "spanId": true, "profileId": true}

// maxLine is the longest line that ReadJSONLines takes.
const maxLine = 64 << 20

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

// ParseJSON reads a request from OTLP JSON, or from the variant of the Collector's file exporter. IDs may be in protobuf's base64
// where that is not hexadecimal, too. Fields that it does not know are skipped.
func ParseJSON(b []byte) (*collectorpb.ExportProfilesServiceRequest, error) {
	b, err := idsInBase64(b)
	if err != nil {
		return nil, fmt.Errorf("decoding OTLP JSON: %w", err)
	}
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, req); err != nil {
		return nil, fmt.Errorf("decoding OTLP JSON: %w", err)
	}
	return req, nil
}

// ReadJSONLines reads requests, one per line, as WriteJSONLine and the Collector's file exporter
// write them. Empty lines are skipped; an unfinished last line is an error that names its number.
func ReadJSONLines(r io.Reader) ([]*collectorpb.ExportProfilesServiceRequest, error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	var reqs []*collectorpb.ExportProfilesServiceRequest
	line := 0
	for s.Scan() {
		line++
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		req, err := ParseJSON(s.Bytes())
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

// idsInBase64 replaces the IDs in OTLP JSON. Attributes cannot be mistaken for IDs: their keys are
// values in JSON.
func idsInBase64(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected text after the JSON value")
	}
	var walk func(any)
	walk = func(v any) {
		switch x := v.(type) {
		case []any:
			for _, e := range x {
				walk(e)
			}
		case map[string]any:
			for k, e := range x {
				if idFields[k] {
					s, _ := e.(string)
					if raw, err := hex.DecodeString(s); err == nil && s != "" {
						x[k] = raw // which package json writes in base64
					}
					continue
				}
				walk(e)
			}
		}
	}
	walk(tree)
	return json.Marshal(tree)
}
