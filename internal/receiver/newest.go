package receiver

import (
	"slices"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Newest keeps only the newest profiles of a state, for example of memory in use. Each profile describes the whole state, so
// their values must not be added up. A profile of a state has no duration. Newest copies a request that loses profiles, and
// leaves out repeated requests.
func Newest(requests []*collectorpb.ExportProfilesServiceRequest) []*collectorpb.ExportProfilesServiceRequest {
	requests = once(requests)
	type state struct{ name, unit string }
	newest := map[state]uint64{}
	of := func(d dictionary.Dictionary, p *profilespb.Profile) state {
		return state{d.Str(p.GetSampleType().GetTypeStrindex()), d.Str(p.GetSampleType().GetUnitStrindex())}
	}
	for _, req := range requests {
		d := dictionary.Of(req)
		for p := range dictionary.Profiles(req) {
			if p.GetDurationNano() == 0 {
				newest[of(d, p.Profile)] = max(newest[of(d, p.Profile)], p.GetTimeUnixNano())
			}
		}
	}
	out := make([]*collectorpb.ExportProfilesServiceRequest, 0, len(requests))
	for _, req := range requests {
		d := dictionary.Of(req)
		old := func(p *profilespb.Profile) bool {
			return p.GetDurationNano() == 0 && p.GetTimeUnixNano() < newest[of(d, p)]
		}
		out = append(out, without(req, old))
	}
	return out
}

// once returns requests without the repeated ones.
func once(requests []*collectorpb.ExportProfilesServiceRequest) []*collectorpb.ExportProfilesServiceRequest {
	var resent Resent
	return slices.DeleteFunc(slices.Clone(requests), resent.Is)
}

// without returns a request without some of its profiles. The original is unchanged.
func without(req *collectorpb.ExportProfilesServiceRequest, unwanted func(*profilespb.Profile) bool) *collectorpb.ExportProfilesServiceRequest {
	some := false
	for p := range dictionary.Profiles(req) {
		some = some || unwanted(p.Profile)
	}
	if !some {
		return req
	}
	out := &collectorpb.ExportProfilesServiceRequest{Dictionary: req.GetDictionary()}
	for _, rp := range req.GetResourceProfiles() {
		resource := &profilespb.ResourceProfiles{Resource: rp.GetResource(), SchemaUrl: rp.GetSchemaUrl()}
		for _, sp := range rp.GetScopeProfiles() {
			scope := &profilespb.ScopeProfiles{Scope: sp.GetScope(), SchemaUrl: sp.GetSchemaUrl()}
			for _, p := range sp.GetProfiles() {
				if !unwanted(p) {
					scope.Profiles = append(scope.Profiles, p)
				}
			}
			resource.ScopeProfiles = append(resource.ScopeProfiles, scope)
		}
		out.ResourceProfiles = append(out.ResourceProfiles, resource)
	}
	return out
}
