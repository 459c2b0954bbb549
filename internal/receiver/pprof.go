package receiver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

// PprofFile is the name of the pprof file in Options.Dir.
const PprofFile = "profile.pb.gz"

// WritePprof writes requests as one pprof file into a folder. Only its owner can read the file. For a state, it writes only the
// newest profiles. Without requests, it writes no file. hide selects the frames to leave out; nil keeps all.
func WritePprof(dir string, requests []*collectorpb.ExportProfilesServiceRequest, hide func([]Frame) []bool) error {
	requests = Newest(requests)
	if len(requests) == 0 {
		return nil
	}
	if hide != nil {
		for i, req := range requests {
			requests[i] = fold(req, hide)
		}
	}
	data, err := pprof.File(requests...)
	if err != nil {
		return fmt.Errorf("writing a pprof profile: %w", err)
	}
	file := filepath.Join(dir, PprofFile)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		if e := os.Remove(file); !errors.Is(e, fs.ErrNotExist) { // an incomplete file is no profile
			err = errors.Join(err, e)
		}
		return err
	}
	return nil
}

// fold returns a request without the locations that have only hidden frames. hide selects these frames. The request itself is
// unchanged.
func fold(req *collectorpb.ExportProfilesServiceRequest, hide func([]Frame) []bool) *collectorpb.ExportProfilesServiceRequest {
	d := newResolver(dictionary.Of(req))
	stacks := slices.Clone(d.GetStackTable())
	some := false
	var list []Frame
	var of []int // the location of each frame
	for i, s := range stacks {
		list, of = list[:0], of[:0]
		for at, l := range s.GetLocationIndices() {
			for _, f := range d.frames(l) {
				list, of = append(list, f), append(of, at)
			}
		}
		hidden := hide(list)
		if hidden == nil {
			continue
		}
		visible := map[int]bool{}
		for j, at := range of {
			visible[at] = visible[at] || !hidden[j]
		}
		kept := &profilespb.Stack{}
		for at, l := range s.GetLocationIndices() {
			if visible[at] {
				kept.LocationIndices = append(kept.LocationIndices, l)
			}
		}
		stacks[i], some = kept, true
	}
	if !some {
		return req
	}
	return &collectorpb.ExportProfilesServiceRequest{
		ResourceProfiles: req.GetResourceProfiles(),
		Dictionary: &profilespb.ProfilesDictionary{
			MappingTable: d.GetMappingTable(), LocationTable: d.GetLocationTable(), FunctionTable: d.GetFunctionTable(),
			LinkTable: d.GetLinkTable(), StringTable: d.GetStringTable(), AttributeTable: d.GetAttributeTable(), StackTable: stacks,
		},
	}
}
