package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

var errWire = errors.New("not a protobuf message")

// pathToSample lists the field numbers from a request to its samples: resource_profiles, scope_profiles, profiles, samples.
var pathToSample = []protowire.Number{1, 2, 2, 2}

// numbering maps field numbers of an older wire layout to the current ones.
type numbering struct {
	profile, sample map[protowire.Number]protowire.Number
}

// sample19 maps the fields of Sample before OTLP 1.10: values, attribute_indices, link_index.
var sample19 = map[protowire.Number]protowire.Number{2: 4, 3: 2, 4: 3}

// VersionHeader names the development version of the profiles protocol. With this header, a receiver can reject an unknown
// version instead of misreading the request. Version 1 is the layout of OTLP 1.10 and 1.11. Older layouts have no number
// (https://github.com/open-telemetry/opentelemetry-proto/pull/857).
const (
	VersionHeader = "otlp-profiles-development-version"
	Version       = "1"
)

// Versioned reports whether an otlp_version has a development version.
func Versioned(otlpVersion string) bool { return oldLayouts[otlpVersion] == nil }

// Today is the otlp_version of queued requests and this program's protobuf types.
const Today = "1.11"

// oldLayouts maps each otlp_version to its older layout.
var oldLayouts = map[string]*numbering{
	"1.9": {sample: sample19},
	// In OTLP 1.8, field 7 was comment_strindices, so the numbers of later fields are higher by one. comment_strindices is never
	// written.
	"1.8": {profile: map[protowire.Number]protowire.Number{8: 7, 9: 8, 10: 9, 11: 10, 12: 11}, sample: sample19},
}

// Known reports whether the layout of an otlp_version can be read.
func Known(otlpVersion string) bool { return otlpVersion == Today || oldLayouts[otlpVersion] != nil }

// FromLayout converts a request from the layout of an otlp_version to the current layout.
func FromLayout(body []byte, otlpVersion string) ([]byte, error) {
	old := oldLayouts[otlpVersion]
	if old == nil {
		return body, nil
	}
	return old.renumber(make([]byte, 0, len(body)), body, pathToSample)
}

// ToLayout converts a request from the current layout to the layout of an otlp_version.
func ToLayout(body []byte, otlpVersion string) ([]byte, error) {
	old := oldLayouts[otlpVersion]
	if old == nil {
		return body, nil
	}
	flip := func(m map[protowire.Number]protowire.Number) map[protowire.Number]protowire.Number {
		out := make(map[protowire.Number]protowire.Number, len(m))
		for a, b := range m {
			out[b] = a
		}
		return out
	}
	inverse := numbering{profile: flip(old.profile), sample: flip(old.sample)}
	return inverse.renumber(make([]byte, 0, len(body)), body, pathToSample)
}

// renumber appends in to out with changed field numbers. path leads from in to the samples.
func (n *numbering) renumber(out, in []byte, path []protowire.Number) ([]byte, error) {
	var to map[protowire.Number]protowire.Number
	switch len(path) {
	case 0:
		to = n.sample
	case 1:
		to = n.profile
	}
	for len(in) > 0 {
		num, typ, tagLen := protowire.ConsumeTag(in)
		if tagLen < 0 {
			return nil, errWire
		}
		valueLen := protowire.ConsumeFieldValue(num, typ, in[tagLen:])
		if valueLen < 0 {
			return nil, errWire
		}
		value := in[tagLen : tagLen+valueLen]
		in = in[tagLen+valueLen:]
		if len(path) > 0 && num == path[0] && typ == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(value)
			changed, err := n.renumber(make([]byte, 0, len(inner)), inner, path[1:])
			if err != nil {
				return nil, err
			}
			out = protowire.AppendTag(out, num, typ)
			out = protowire.AppendBytes(out, changed)
			continue
		}
		if other, ok := to[num]; ok {
			num = other
		}
		out = protowire.AppendTag(out, num, typ)
		out = append(out, value...)
	}
	return out, nil
}
