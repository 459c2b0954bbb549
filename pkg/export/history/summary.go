package history

import (
	"cmp"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Summary describes the content of a segment, or of a whole history.
type Summary struct {
	// Start and End are the time range of the data.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Records is the number of requests. Rows is the number of gadget rows in them.
	Records int64 `json:"records"`
	Rows    int64 `json:"rows"`
	// Bytes is the size on disk. Err is the reason why a part of a segment could not be read. Only List sets them.
	Bytes int64 `json:"-"`
	Err   error `json:"-"`
	// Sums contains a sum for each service and profile type.
	Sums []Sum `json:"sums"`
	// More reports that some services were summed under an empty name, because there were too many services.
	More bool `json:"more,omitempty"`

	places map[sumKey]int
}

// Sum is a service's sum of one type of profile.
type Sum struct {
	sumKey
	Samples int64 `json:"samples"`
	// Value is the sum of all values. For a state, such as memory in use, it is the service's newest value.
	Value int64 `json:"value"`
	State bool  `json:"state,omitempty"`
	// First and Last are the time range of the samples, in nanoseconds since 1970.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

type sumKey struct {
	Service string `json:"service"`
	// Gadget is the scope's name, which is the gadget's image.
	Gadget string `json:"gadget"`
	Type   string `json:"type"`
	Unit   string `json:"unit"`
}

// sumOf returns a profile's sum.
func sumOf(d dictionary.Dictionary, p dictionary.Profile) Sum {
	st, start := p.GetSampleType(), p.GetTimeUnixNano()
	sum := Sum{
		sumKey:  sumKey{Service: d.OfResource(p.Resource, "service.name"), Gadget: p.Scope.GetScope().GetName(), Type: d.Str(st.GetTypeStrindex()), Unit: d.Str(st.GetUnitStrindex())},
		Samples: int64(len(p.GetSamples())), State: p.GetDurationNano() == 0, First: start, Last: start + p.GetDurationNano(),
	}
	for _, s := range p.GetSamples() {
		sum.Value += dictionary.Total(s)
	}
	return sum
}

// maxSums limits a summary. Services beyond this limit share an empty name.
const maxSums = 2000

// add adds a sum.
func (s *Summary) add(sum Sum) {
	if s.places == nil {
		s.places = map[sumKey]int{}
	}
	i, ok := s.places[sum.sumKey]
	if !ok && len(s.Sums) >= maxSums {
		s.More, sum.sumKey = true, sumKey{}
		i, ok = s.places[sum.sumKey]
	}
	if !ok {
		i = len(s.Sums)
		s.places[sum.sumKey] = i
		s.Sums = append(s.Sums, Sum{sumKey: sum.sumKey})
	}
	to := &s.Sums[i]
	switch {
	case !sum.State || sum.Last == to.Last:
		to.Value += sum.Value
	case sum.Last > to.Last:
		to.Value = sum.Value
	}
	to.State, to.Samples = sum.State, to.Samples+sum.Samples
	to.First, to.Last = min(cmp.Or(to.First, sum.First), sum.First), max(to.Last, sum.Last)
}

// merge adds another summary.
func (s *Summary) merge(o Summary) {
	s.Bytes += o.Bytes
	if o.Records == 0 {
		return
	}
	if s.Records == 0 || o.Start.Before(s.Start) {
		s.Start = o.Start
	}
	if s.Records == 0 || o.End.After(s.End) {
		s.End = o.End
	}
	s.Records, s.Rows, s.More = s.Records+o.Records, s.Rows+o.Rows, s.More || o.More
	for _, sum := range o.Sums {
		s.add(sum)
	}
}

// sort orders the sums by gadget and type, and then by descending value. Nothing can be added afterwards.
func (s *Summary) sort() {
	slices.SortFunc(s.Sums, func(a, b Sum) int {
		return cmp.Or(strings.Compare(a.Gadget, b.Gadget), strings.Compare(a.Type, b.Type), cmp.Compare(b.Value, a.Value), strings.Compare(a.Service, b.Service))
	})
}

// List returns the summaries of the segments in a folder, oldest first. If a segment has none, List decodes its records. Otherwise,
// List only verifies their checksums, and the summary also counts data that damage makes unreadable.
func List(dir string) (list []Summary, err error) {
	err = eachSegment(dir, func(f *os.File, of file) {
		s, ok := readSummary(f, of)
		if ok {
			s.Err = eachRecord(f, of, func(wire.Message) error { return nil })
		} else {
			a := newAnswer(Query{}, maxEntries)
			a.out.Summary.Err = a.read(f, of)
			s = a.out.Summary
		}
		s.Bytes = onDisk(of.size)
		list = append(list, s)
	})
	return list, err
}

// Total adds up summaries.
func Total(list []Summary) (s Summary) {
	for _, one := range list {
		s.merge(one)
	}
	s.sort()
	return s
}

// Query selects data from a history.
type Query struct {
	// From and To limit the start of a profile. From is inclusive, and To is exclusive. A zero To means no limit.
	From, To time.Time
	// Service and Gadget select by name; empty selects all. Gadget is the image's name or its end, such as
	// profile_cpu. A tag or digest does not count.
	Service, Gadget string
}

// GadgetName returns the gadget's name, for example profile_cpu, from a scope's name, which is usually an image.
func GadgetName(scope string) string { return path.Base(untagged(scope)) }

// untagged returns an image's name without its tag and digest, as in a scope's name.
func untagged(image string) string {
	folder, name := path.Split(image)
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	return folder + name
}

// Takes reports whether the query selects the data of a service and a gadget.
func (q Query) Takes(service, gadget string) bool {
	return (q.Service == "" || q.Service == service) && (q.Gadget == "" || strings.HasSuffix("/"+untagged(gadget), "/"+untagged(q.Gadget)))
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
