package receiver

import collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

// Resent tells which requests hold what came before: a sender that gets no answer in time sends its
// request again, whose profiles keep their IDs. The zero value is ready. It is for one goroutine.
type Resent struct {
	seen map[string]struct{}
}

// Is reports whether all profiles of a request came before, and remembers them. Profiles without an ID
// are always new.
func (r *Resent) Is(req *collectorpb.ExportProfilesServiceRequest) bool {
	profiles, known := 0, 0
	for _, rp := range req.GetResourceProfiles() {
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				profiles++
				id := string(p.GetProfileId())
				if id == "" {
					continue
				}
				if _, ok := r.seen[id]; ok {
					known++
					continue
				}
				if r.seen == nil {
					r.seen = map[string]struct{}{}
				}
				r.seen[id] = struct{}{}
			}
		}
	}
	return profiles > 0 && known == profiles
}
