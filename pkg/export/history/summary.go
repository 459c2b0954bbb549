package history

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// Summary describes the content of a segment, or of a whole history.
type Summary struct {
	// Start and End are the time range of the data.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Records is the number of requests. Rows is the number of gadget rows in them.
	Records int64 `json:"records"`
	Rows    int64 `json:"rows"`
	// Sums contains a sum for each service and profile type.
	Sums []Sum `json:"sums"`
	// More reports that some services were summed under an empty name, because there were too many services.
	More bool `json:"more,omitempty"`

	places map[sumKey]int
}

// Sum is a service's sum of one type of profile.
type Sum struct {
	Service string `json:"service"`
	// Gadget is the scope's name, which is the gadget's image.
	Gadget  string `json:"gadget"`
	Type    string `json:"type"`
	Unit    string `json:"unit"`
	Samples int64  `json:"samples"`
	// Value is the sum of all values. For a state, such as memory in use, it is the newest value.
	Value int64 `json:"value"`
	// State is the time of the newest value in nanoseconds since 1970, or 0 if the type is not a state.
	State uint64 `json:"state,omitempty"`
}

type sumKey struct{ service, gadget, typ, unit string }

// maxSums limits a summary. Services beyond this limit share an empty name.
const maxSums = 2000

// sum returns the sum for a key.
func (s *Summary) sum(k sumKey) *Sum {
	if s.places == nil {
		s.places = map[sumKey]int{}
		for i, old := range s.Sums {
			s.places[sumKey{old.Service, old.Gadget, old.Type, old.Unit}] = i
		}
	}
	i, ok := s.places[k]
	if !ok && len(s.Sums) >= maxSums && k != (sumKey{}) {
		s.More = true
		return s.sum(sumKey{})
	}
	if !ok {
		i = len(s.Sums)
		s.places[k] = i
		s.Sums = append(s.Sums, Sum{Service: k.service, Gadget: k.gadget, Type: k.typ, Unit: k.unit})
	}
	return &s.Sums[i]
}

func (s *Summary) add(service, gadget, typ, unit string, p *profilespb.Profile) {
	one := Sum{Samples: int64(len(p.GetSamples()))}
	for _, sample := range p.GetSamples() {
		one.Value += total(sample.GetValues(), len(sample.GetTimestampsUnixNano()))
	}
	if p.GetDurationNano() == 0 {
		one.State = p.GetTimeUnixNano()
	}
	s.sum(sumKey{service, gadget, typ, unit}).merge(one)
}

// total returns the sum of a sample's values. A sample without values counts one for each timestamp.
func total(values []int64, timestamps int) int64 {
	if len(values) == 0 {
		return int64(timestamps)
	}
	sum := int64(0)
	for _, v := range values {
		sum += v
	}
	return sum
}

func (s *Sum) merge(o Sum) {
	switch {
	case o.State > s.State:
		s.Value, s.State = o.Value, o.State
	case o.State == s.State:
		s.Value += o.Value
	}
	s.Samples += o.Samples
}

// record adds a record's time range and rows.
func (s *Summary) record(start, end time.Time, rows int64) {
	if s.Records == 0 || start.Before(s.Start) {
		s.Start = start
	}
	if s.Records == 0 || end.After(s.End) {
		s.End = end
	}
	s.Records++
	s.Rows += rows
}

// merge adds another summary.
func (s *Summary) merge(o Summary) {
	if o.Records == 0 {
		return
	}
	records := s.Records
	s.record(o.Start, o.End, o.Rows)
	s.Records = records + o.Records
	s.More = s.More || o.More
	for _, sum := range o.Sums {
		s.sum(sumKey{sum.Service, sum.Gadget, sum.Type, sum.Unit}).merge(sum)
	}
}

// sort orders the sums by gadget and type, and then by descending value.
func (s *Summary) sort() {
	slices.SortFunc(s.Sums, func(a, b Sum) int {
		return cmp.Or(strings.Compare(a.Gadget, b.Gadget), strings.Compare(a.Type, b.Type), cmp.Compare(b.Value, a.Value), strings.Compare(a.Service, b.Service))
	})
	s.places = nil
}

// Query selects data from a history.
type Query struct {
	// From and To limit the start of a profile. From is inclusive, and To is exclusive. A zero To means no limit.
	From, To time.Time
	// Service and Gadget select by name; empty selects all. Gadget is the end of the image's name, such as profile_cpu:v1,
	// or the gadget's name, such as profile_cpu.
	Service, Gadget string
}

// GadgetName returns the gadget's name, for example profile_cpu, from a scope's name, which is usually an image.
func GadgetName(scope string) string {
	name, _, _ := strings.Cut(path.Base(scope), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// Takes reports whether the query selects the data of a service and a gadget.
func (q Query) Takes(service, gadget string) bool {
	return (q.Service == "" || q.Service == service) &&
		(q.Gadget == "" || q.Gadget == GadgetName(gadget) || strings.HasSuffix("/"+gadget, "/"+q.Gadget))
}

func (q Query) covers(t time.Time) bool {
	return !t.Before(q.From) && (q.To.IsZero() || t.Before(q.To))
}

// skips reports whether a segment contains nothing for the query.
func (q Query) skips(s Summary) bool {
	if s.End.Before(q.From) || !q.To.IsZero() && !s.Start.Before(q.To) {
		return true
	}
	return !s.More && !slices.ContainsFunc(s.Sums, func(sum Sum) bool { return q.Takes(sum.Service, sum.Gadget) })
}
