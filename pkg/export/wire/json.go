package wire

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// JSON converts a request from the wire format to OTLP's JSON mapping, on one line. It serves files too: they
// hold ProfilesData, which has the same fields as a request.
func JSON(body []byte) ([]byte, error) {
	data, err := Decode(body)
	if err != nil {
		return nil, err
	}
	return MarshalJSON(data)
}

// ids are the byte fields that OTLP writes as hexadecimal digits instead of base64, with their values
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding). The specification names the two of traces; receivers read
// profileId in the same way. No text looks like one: quotes in a text have a backslash.
var ids = regexp.MustCompile(`("(?:traceId|spanId|profileId)":)"([^"]*)"`)

// MarshalJSON returns a message in OTLP's JSON mapping, on one line. That is protobuf's, but enums are numbers, and ids are
// hexadecimal.
func MarshalJSON(m proto.Message) ([]byte, error) {
	text, err := (protojson.MarshalOptions{UseEnumNumbers: true}).Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil { // package protojson adds spaces, in some programs and not in others
		return nil, err
	}
	return ids.ReplaceAllFunc(b.Bytes(), func(field []byte) []byte {
		parts := ids.FindSubmatch(field)
		id, _ := base64.StdEncoding.AppendDecode(nil, parts[2]) // which package protojson has written
		return fmt.Appendf(nil, "%s\"%x\"", parts[1], id)
	}), nil
}

// decoders bounds the memory for decoded requests of all exporters in the process. Decoded requests are many times as large as
// encoded ones.
var decoders = make(chan struct{}, 1)

// ErrBusy is the error of Alone while others decode.
var ErrBusy = errors.New("other exporters are encoding their requests")

// Alone runs encode, which decodes body, when nobody else decodes. It waits for that no longer than ctx.
func Alone(ctx context.Context, body []byte, encode func([]byte) ([]byte, error)) ([]byte, error) {
	select {
	case decoders <- struct{}{}:
		defer func() { <-decoders }()
		return encode(body)
	case <-ctx.Done():
		return nil, ErrBusy
	}
}

// Decode reads a request in the wire format.
func Decode(body []byte) (*otlpprofiles.ProfilesData, error) {
	data := &otlpprofiles.ProfilesData{}
	if err := proto.Unmarshal(body, data); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return data, nil
}
