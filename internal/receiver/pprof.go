package receiver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

// PprofFile is the name of the pprof file in Options.Dir.
const PprofFile = "profile.pb.gz"

// writePprof writes the requests that are kept as one pprof file that only its owner can read; none if there are none.
func (r *Receiver) writePprof() error {
	r.mu.Lock()
	requests := make([]*collectorpb.ExportProfilesServiceRequest, len(r.requests))
	for i, kept := range r.requests {
		requests[i] = kept.req
	}
	r.mu.Unlock()
	if len(requests) == 0 {
		return nil
	}
	data, err := pprof.File(requests...)
	if err != nil {
		return fmt.Errorf("writing a pprof profile: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(r.opts.Dir, PprofFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
