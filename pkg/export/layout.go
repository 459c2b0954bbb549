package export

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

var errWire = errors.New("not a protobuf message")

// pathToSample leads from a request to its samples: resource_profiles, scope_profiles, profiles,
// samples.
var pathToSample = []protowire.Number{1, 2, 2, 2}

// numbering maps field numbers of an older wire layout to those of today.
type numbering struct {
	profile, sample map[protowire.Number]protowire.Number
}

// sample19 is the Sample from before OTLP 1.10: values, attribute_indices, link_index.
var sample19 = map[protowire.Number]protowire.Number{2: 4, 3: 2, 4: 3}

// versionHeader names the development version of the profiles protocol, so that a receiver can refuse
// what it does not read instead of misreading it. Version 1 is the layout of OTLP 1.10 and 1.11; older
// layouts have no number (https://github.com/open-telemetry/opentelemetry-proto/pull/857).
const (
	versionHeader   = "otlp-profiles-development-version"
	profilesVersion = "1"
)

// versioned tells whether the layout of an otlp_version has a version.
func versioned(otlpVersion string) bool { return oldLayouts[otlpVersion] == nil }

// layoutToday is the otlp_version of the layout that the protobuf types of this program have.
const layoutToday = "1.11"

// oldLayouts are the layouts that are not today's, by otlp_version.
var oldLayouts = map[string]*numbering{
	"1.9": {sample: sample19},
	// OTLP 1.8 had comment_strindices as field 7, so later fields are one higher there. It is never written.
	"1.8": {profile: map[protowire.Number]protowire.Number{8: 7, 9: 8, 10: 9, 11: 10, 12: 11}, sample: sample19},
}

// inverse maps the field numbers of today to those of an older wire layout.
func (n *numbering) inverse() *numbering {
	flip := func(m map[protowire.Number]protowire.Number) map[protowire.Number]protowire.Number {
		out := make(map[protowire.Number]protowire.Number, len(m))
		for a, b := range m {
			out[b] = a
		}
		return out
	}
	return &numbering{profile: flip(n.profile), sample: flip(n.sample)}
}

// relaid rewrites a request from the wire layout of one otlp_version to that of another.
func relaid(body []byte, from, to string) ([]byte, error) {
	if from == to {
		return body, nil
	}
	var err error
	if old := oldLayouts[from]; old != nil {
		if body, err = old.renumbered(body); err != nil {
			return nil, err
		}
	}
	if old := oldLayouts[to]; old != nil {
		return old.inverse().renumbered(body)
	}
	return body, nil
}

// renumbered rewrites a request from an older wire layout to the one that the protobuf types of this
// program have; an inverse does the opposite.
func (n *numbering) renumbered(body []byte) ([]byte, error) {
	return n.renumber(make([]byte, 0, len(body)), body, pathToSample)
}

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
		if today, ok := to[num]; ok {
			num = today
		}
		out = protowire.AppendTag(out, num, typ)
		out = append(out, value...)
	}
	return out, nil
}
