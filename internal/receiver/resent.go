package receiver

import (
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Resent recognizes repeated requests. A sender that gets no answer in time sends its request again, with the same profile IDs.
// The zero value is ready to use. It is not safe for concurrent use.
type Resent struct {
	seen map[string]struct{}
}

// Is reports whether all profiles of a request have arrived before, and remembers them. Profiles without an ID
// are always new.
func (r *Resent) Is(req *collectorpb.ExportProfilesServiceRequest) bool {
	profiles, known := 0, 0
	for p := range dictionary.Profiles(req) {
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
	return profiles > 0 && known == profiles
}
