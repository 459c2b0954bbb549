package wire

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON converts a request from the wire format to OTLP's JSON mapping, on one line. The file transport also uses it, because
// ProfilesData has the same fields as a request.
func JSON(body []byte) ([]byte, error) {
	data, err := Decode(body)
	if err != nil {
		return nil, err
	}
	return MarshalJSON(data)
}

// MarshalJSON returns a message in OTLP's JSON mapping, on one line.
func MarshalJSON(m proto.Message) ([]byte, error) {
	return appendMessage(make([]byte, 0, 4*proto.Size(m)), m.ProtoReflect())
}

// decoders limits the process to one decoded request at a time, because a decoded request is many times as large as an encoded
// request.
var decoders = make(chan struct{}, 1)

// ErrBusy is Alone's error if another caller is decoding.
var ErrBusy = errors.New("other exporters are encoding their requests")

// Alone runs encode, which decodes body, while no other caller decodes. It waits for its turn until ctx ends.
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

// hexFields lists the byte fields that OTLP writes in hexadecimal instead of base64
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding). The specification names only traceId and spanId.
// Receivers read profileId in the same way.
var hexFields = map[protoreflect.Name]bool{"trace_id": true, "span_id": true, "profile_id": true}

// appendMessage appends m in protobuf's JSON mapping with OTLP's changes: enums are numbers, and hexFields are hexadecimal. It
// omits unset fields.
func appendMessage(b []byte, m protoreflect.Message) ([]byte, error) {
	b = append(b, '{')
	first := true
	var err error
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !m.Has(fd) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, '"')
		b = append(b, fd.JSONName()...)
		b = append(b, '"', ':')
		v := m.Get(fd)
		if !fd.IsList() {
			if b, err = appendValue(b, fd, v); err != nil {
				return nil, err
			}
			continue
		}
		b = append(b, '[')
		for j := range v.List().Len() {
			if j > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, fd, v.List().Get(j)); err != nil {
				return nil, err
			}
		}
		b = append(b, ']')
	}
	return append(b, '}'), nil
}

func appendValue(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendString(b, v.String()), nil
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), nil
	case protoreflect.EnumKind:
		return strconv.AppendInt(b, int64(v.Enum()), 10), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return append(strconv.AppendInt(append(b, '"'), v.Int(), 10), '"'), nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return append(strconv.AppendUint(append(b, '"'), v.Uint(), 10), '"'), nil
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendFloat(b, v.Float()), nil
	case protoreflect.BytesKind:
		b = append(b, '"')
		if hexFields[fd.Name()] {
			b = hex.AppendEncode(b, v.Bytes())
		} else {
			b = base64.StdEncoding.AppendEncode(b, v.Bytes())
		}
		return append(b, '"'), nil
	}
	return nil, fmt.Errorf("field %s: kind %s has no JSON encoding", fd.FullName(), fd.Kind())
}

func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// appendString quotes s. Most strings need no escapes, so it copies them.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, err := json.Marshal(s)
			if err != nil {
				quoted = []byte(`""`) // cannot happen for a string
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
