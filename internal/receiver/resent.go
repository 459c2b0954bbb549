package receiver

import (
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Resent recognizes repeated requests. A sender that gets no answer in time sends its request again, with the same profile IDs.
// The zero value is ready to use. It is not safe for concurrent use.
type Resent struct {
	seen map[string]bool
}

// Is reports whether all profiles of a request have arrived before, and remembers them. Profiles without an ID
// are always new.
func (r *Resent) Is(req *collectorpb.ExportProfilesServiceRequest) bool {
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	some, known := false, true
	for p := range dictionary.Profiles(req) {
		id := string(p.GetProfileId())
		some, known = true, known && r.seen[id]
		r.seen[id] = id != ""
	}
	return some && known
}
