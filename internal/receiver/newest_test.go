package receiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
)

// Each profile describes the whole state, so three profiles of one object do not make three objects.
func TestNewest(t *testing.T) {
	const second = uint64(time.Second)
	id := byte(0)
	at := func(time, duration uint64) *collectorpb.ExportProfilesServiceRequest {
		req := request()
		p := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
		id++
		p.ProfileId[0] = id
		p.TimeUnixNano, p.DurationNano = time*second, duration*second
		return req
	}
	total := func(reqs []*collectorpb.ExportProfilesServiceRequest) (n int64) {
		for _, s := range ResolveAll(reqs) {
			n += s.Total()
		}
		return n
	}
	one := total([]*collectorpb.ExportProfilesServiceRequest{request()})
	require.Positive(t, one)

	states := []*collectorpb.ExportProfilesServiceRequest{at(10, 0), at(30, 0), at(30, 0), at(20, 0)} // in any order
	require.Equal(t, 2*one, total(Newest(states)), "profiles of two resources at the same time are both the newest")
	require.Equal(t, 4*one, total(states), "the input is unchanged")

	sums := []*collectorpb.ExportProfilesServiceRequest{at(10, 10), at(20, 10), at(30, 1)}
	require.Equal(t, 3*one, total(Newest(sums)), "profiles of events add up")
	require.Equal(t, 3*one, total(Newest(append(sums, sums[1]))), "a repeated request counts once")

	other := at(10, 0)
	other.Dictionary.StringTable[other.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].SampleType.TypeStrindex] = "another"
	require.Equal(t, 2*one, total(Newest([]*collectorpb.ExportProfilesServiceRequest{other, at(20, 0)})), "each type has a newest")
	require.Empty(t, Newest(nil))
	require.Len(t, Newest([]*collectorpb.ExportProfilesServiceRequest{nil, {}}), 2)
}
