package receiver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

// PprofFile is the name of the pprof file in Options.Dir.
const PprofFile = "profile.pb.gz"

// writePprof writes the requests that are kept, of a state only the newest, as one pprof file that only its owner can read; none if there
// are none.
func (r *Receiver) writePprof() error {
	requests := Newest(r.Requests())
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
