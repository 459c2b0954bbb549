package otlpcheck

import (
	"errors"
	"fmt"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Layout is a wire layout of the protocol: which field numbers a message has. Receivers take a
// message of another layout without complaint and read nonsense, so a test decodes it as they do.
type Layout int

// The layouts, named by the first release of opentelemetry-proto that has them. They differ in
// Sample and Profile only.
const (
	// Layout110 is that of OTLP 1.10 and 1.11, and of this module's generated code.
	Layout110 Layout = iota
	// Layout19 has other numbers in Sample.
	Layout19
	// Layout18 has those of Layout19, and other numbers in Profile.
	Layout18
)

// String returns the release's number.
func (l Layout) String() string {
	switch l {
	case Layout18:
		return "1.8"
	case Layout19:
		return "1.9"
	default:
		return "1.10"
	}
}

// renumbering maps a message's field numbers in an older layout to today's.
type renumbering map[protowire.Number]protowire.Number

// dropped is added to the number of a field that today's layout no longer has, which makes it an
// unknown field.
const dropped = 1000

var (
	sample19  = renumbering{2: 4, 3: 2, 4: 3}
	profile18 = renumbering{7: 7 + dropped, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11}
)

// nesting is a message on the way from the request to Sample.
type nesting struct {
	renumber renumbering
	children map[protowire.Number]*nesting
}

func nestingOf(l Layout) *nesting {
	sample := &nesting{renumber: sample19}
	profile := &nesting{children: map[protowire.Number]*nesting{2: sample}}
	if l == Layout18 {
		profile.renumber = profile18
	}
	scope := &nesting{children: map[protowire.Number]*nesting{2: profile}}
	resource := &nesting{children: map[protowire.Number]*nesting{2: scope}}
	return &nesting{children: map[protowire.Number]*nesting{1: resource}}
}

// Decode unmarshals a request of the given layout. Fields of that layout that no longer exist
// become unknown fields.
func Decode(body []byte, l Layout) (*collectorpb.ExportProfilesServiceRequest, error) {
	if l != Layout110 {
		var err error
		if body, err = renumber(nil, body, nestingOf(l)); err != nil {
			return nil, fmt.Errorf("decoding a request of OTLP %s: %w", l, err)
		}
	}
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := proto.Unmarshal(body, req); err != nil {
		return nil, fmt.Errorf("decoding a request of OTLP %s: %w", l, err)
	}
	return req, nil
}

// CheckBytesAs is CheckBytes for a body of the given layout.
func CheckBytesAs(body []byte, l Layout) []error {
	req, err := Decode(body, l)
	if err != nil {
		return []error{&Violation{Path: "request", Rule: RuleDecodable, Detail: err.Error()}}
	}
	return Check(req)
}

var errWireType = errors.New("a message is not length-delimited")

// renumber appends the message in b to out with today's field numbers.
func renumber(out, b []byte, n *nesting) ([]byte, error) {
	for len(b) > 0 {
		num, typ, tagLen := protowire.ConsumeTag(b)
		if tagLen < 0 {
			return nil, protowire.ParseError(tagLen)
		}
		valueLen := protowire.ConsumeFieldValue(num, typ, b[tagLen:])
		if valueLen < 0 {
			return nil, protowire.ParseError(valueLen)
		}
		value := b[tagLen : tagLen+valueLen]
		b = b[tagLen+valueLen:]
		child := n.children[num]
		if to, ok := n.renumber[num]; ok {
			num = to
		}
		out = protowire.AppendTag(out, num, typ)
		if child == nil {
			out = append(out, value...)
			continue
		}
		if typ != protowire.BytesType {
			return nil, errWireType
		}
		content, _ := protowire.ConsumeBytes(value)
		inner, err := renumber(nil, content, child)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(out, inner)
	}
	return out, nil
}
