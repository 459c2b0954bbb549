// Package dictionary resolves the indices in OTLP profiles. It accepts damaged requests: an index out of range counts as empty.
package dictionary

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// Request has profiles: a request to a receiver, or the ProfilesData of a file. Both have the same fields.
type Request interface {
	GetResourceProfiles() []*profilespb.ResourceProfiles
	GetDictionary() *profilespb.ProfilesDictionary
}

// Profile is a profile of a request with its resource and scope.
type Profile struct {
	*profilespb.Profile
	Resource *profilespb.ResourceProfiles
	Scope    *profilespb.ScopeProfiles
	i, j, k  int
}

// Path returns the profile's path in the request.
func (p Profile) Path() string {
	return fmt.Sprintf("resource_profiles[%d].scope_profiles[%d].profiles[%d]", p.i, p.j, p.k)
}

// Profiles returns the profiles of a request.
func Profiles(r Request) iter.Seq[Profile] {
	return func(yield func(Profile) bool) {
		for i, rp := range r.GetResourceProfiles() {
			for j, sp := range rp.GetScopeProfiles() {
				for k, p := range sp.GetProfiles() {
					if !yield(Profile{p, rp, sp, i, j, k}) {
						return
					}
				}
			}
		}
	}
}

// At returns table[i], or the zero value if i is out of range.
func At[T any](table []T, i int32) (v T) {
	if i >= 0 && int(i) < len(table) {
		v = table[i]
	}
	return v
}

// Total returns the sum of a sample's values. A sample without values counts one for each timestamp.
func Total(s *profilespb.Sample) (sum int64) {
	if len(s.GetValues()) == 0 {
		return int64(len(s.GetTimestampsUnixNano()))
	}
	for _, v := range s.GetValues() {
		sum += v
	}
	return sum
}

// AppendKey appends a map key of indices to key. Different lists have different keys.
func AppendKey(key []byte, indices []int32) []byte {
	for _, i := range indices {
		key = binary.AppendVarint(key, int64(i))
	}
	return key
}

// Dictionary is the dictionary of a request.
type Dictionary struct{ *profilespb.ProfilesDictionary }

// Of returns the dictionary of a request.
func Of(r Request) Dictionary { return Dictionary{r.GetDictionary()} }

// Str returns an entry of the string table.
func (d Dictionary) Str(i int32) string { return At(d.GetStringTable(), i) }

// Key returns the key of an attribute of a resource or scope. The Collector's file exporter writes keys as indices of the string
// table.
func (d Dictionary) Key(kv *commonpb.KeyValue) string {
	if kv.GetKeyStrindex() != 0 {
		return d.Str(kv.GetKeyStrindex())
	}
	return kv.GetKey()
}

// Text returns a value as text: lists in brackets, bytes in hexadecimal. It resolves references to the string table.
func (d Dictionary) Text(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_StringValueStrindex:
		return d.Str(x.StringValueStrindex)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(x.BoolValue)
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(x.IntValue, 10)
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(x.DoubleValue, 'g', -1, 64)
	case *commonpb.AnyValue_BytesValue:
		return hex.EncodeToString(x.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		list := []string{}
		for _, e := range x.ArrayValue.GetValues() {
			list = append(list, d.Text(e))
		}
		return "[" + strings.Join(list, ",") + "]"
	case *commonpb.AnyValue_KvlistValue:
		list := []string{}
		for _, kv := range x.KvlistValue.GetValues() {
			list = append(list, d.Key(kv)+"="+d.Text(kv.GetValue()))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	return ""
}

// OfResource returns the value of a resource's attribute as text, or "" if the resource does not have it.
func (d Dictionary) OfResource(rp *profilespb.ResourceProfiles, key string) string {
	for _, kv := range rp.GetResource().GetAttributes() {
		if d.Key(kv) == key {
			return d.Text(kv.GetValue())
		}
	}
	return ""
}

// Attribute returns the value of a key in the entries of the attribute table. It returns "" without this key.
func (d Dictionary) Attribute(indices []int32, key string) string {
	for _, i := range slices.Backward(indices) {
		if a := At(d.GetAttributeTable(), i); d.Str(a.GetKeyStrindex()) == key {
			return d.Text(a.GetValue())
		}
	}
	return ""
}

// Attributes returns entries of the attribute table as a map.
func (d Dictionary) Attributes(indices []int32) map[string]string {
	attrs := make(map[string]string, len(indices))
	for _, i := range indices {
		a := At(d.GetAttributeTable(), i)
		if key := d.Str(a.GetKeyStrindex()); key != "" {
			attrs[key] = d.Text(a.GetValue())
		}
	}
	return attrs
}
