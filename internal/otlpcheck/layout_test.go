package otlpcheck

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// field appends a length-delimited field.
func field(b []byte, num protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), content)
}

// nested wraps a Profile in scope, resource and request.
func nested(profile []byte) []byte {
	return field(nil, 1, field(nil, 2, field(nil, 2, profile)))
}

func TestDecode(t *testing.T) {
	id := []byte("0123456789abcdef")
	// The same sample: stack 1, attributes 5 and 6, link 2, values 300, timestamp 7.
	sample := func(values, attributes, link protowire.Number) []byte {
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
		b = field(b, values, protowire.AppendVarint(nil, 300))
		b = field(b, attributes, []byte{5, 6})
		b = protowire.AppendVarint(protowire.AppendTag(b, link, protowire.VarintType), 2)
		return field(b, 5, protowire.AppendFixed64(nil, 7))
	}
	tests := []struct {
		layout Layout
		body   []byte
	}{
		{Layout110, nested(field(field(field(nil, 2, sample(4, 2, 3)), 7, id), 11, []byte{9}))},
		{Layout19, nested(field(field(field(nil, 2, sample(2, 3, 4)), 7, id), 11, []byte{9}))},
		{Layout18, nested(field(field(field(nil, 2, sample(2, 3, 4)), 8, id), 12, []byte{9}))},
	}
	for _, tt := range tests {
		t.Run(tt.layout.String(), func(t *testing.T) {
			req, err := Decode(tt.body, tt.layout)
			require.NoError(t, err)
			p := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
			require.Equal(t, id, p.ProfileId)
			require.Equal(t, []int32{9}, p.AttributeIndices)
			require.Len(t, p.Samples, 1)
			s := p.Samples[0]
			require.EqualValues(t, 1, s.StackIndex)
			require.Equal(t, []int32{5, 6}, s.AttributeIndices)
			require.EqualValues(t, 2, s.LinkIndex)
			require.Equal(t, []int64{300}, s.Values)
			require.Equal(t, []uint64{7}, s.TimestampsUnixNano)
			require.Empty(t, p.ProtoReflect().GetUnknown())
		})
	}
}

func TestDecodeOfAnotherLayout(t *testing.T) {
	body, err := proto.Marshal(valid())
	require.NoError(t, err)
	require.Empty(t, CheckBytesAs(body, Layout110))

	// A reader of 1.8 takes the profile ID for comments.
	require.Contains(t, ruleIDs(t, CheckBytesAs(body, Layout18)), RuleUnknownField.ID)
	// A reader of 1.9 takes attributes for values.
	require.Contains(t, ruleIDs(t, CheckBytesAs(body, Layout19)), RuleValues.ID)
}

func TestDecodeGarbage(t *testing.T) {
	for _, l := range []Layout{Layout18, Layout19, Layout110} {
		require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytesAs([]byte{0xff}, l)))
		require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytesAs([]byte{0x0a, 0x05, 1}, l)))
		require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytesAs(nested([]byte{0xff}), l)))
	}
	// A varint where the resource profiles should be is an unknown field today, and nonsense before.
	body := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	require.Equal(t, []string{RuleDecodable.ID}, ruleIDs(t, CheckBytesAs(body, Layout19)))
	require.Contains(t, ruleIDs(t, CheckBytesAs(body, Layout110)), RuleUnknownField.ID)
}
