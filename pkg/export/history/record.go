package history

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// record encodes a request for a segment with this dictionary, and adds it to a summary. It changes the request. The result is a
// ProfilesData whose dictionary contains only what earlier records do not contain. After an error, the dictionary is unusable.
func (t *interned) record(data *profilespb.ProfilesData, sum *Summary) ([]byte, error) {
	c := newCopier(data.GetDictionary(), t)
	for p := range dictionary.Profiles(data) {
		sum.add(sumOf(c.from, p))
		for _, s := range p.Samples {
			s.StackIndex, s.LinkIndex, s.AttributeIndices = c.of(stack, s.StackIndex), c.of(link, s.LinkIndex), c.attributes(s.AttributeIndices)
			s.Values, s.TimestampsUnixNano = []int64{total(s)}, nil
		}
		head := c.head(p.Profile)
		p.SampleType, p.PeriodType, p.AttributeIndices, p.ProfileId = head.SampleType, head.PeriodType, head.AttributeIndices, nil
	}
	data.Dictionary, t.dict = t.dict, &profilespb.ProfilesDictionary{}
	return proto.Marshal(data)
}

// sumOf returns a profile's sum.
func sumOf(d dictionary.Dictionary, p dictionary.Profile) Sum {
	st := p.GetSampleType()
	sum := Sum{sumKey: sumKey{serviceOf(p.Resource.GetResource().GetAttributes()), p.Scope.GetScope().GetName(), d.Str(st.GetTypeStrindex()), d.Str(st.GetUnitStrindex())}, Samples: int64(len(p.GetSamples()))}
	for _, s := range p.GetSamples() {
		sum.Value += total(s)
	}
	if p.GetDurationNano() == 0 {
		sum.State = p.GetTimeUnixNano()
	}
	return sum
}

// total returns the sum of a sample's values. A sample without values counts one for each timestamp.
func total(s *profilespb.Sample) (sum int64) {
	if len(s.GetValues()) == 0 {
		return int64(len(s.GetTimestampsUnixNano()))
	}
	for _, v := range s.GetValues() {
		sum += v
	}
	return sum
}

func serviceOf(attrs []*commonpb.KeyValue) string {
	for _, kv := range attrs {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
