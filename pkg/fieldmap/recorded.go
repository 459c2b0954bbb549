package fieldmap

import (
	"slices"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// recordedIDs maps offsets in files with build IDs to addresses in the files' symbol tables. The kernel records a build ID and
// an offset. While a process runs, its files and their segments are known. The segments also apply to other processes with the
// same file, even exited ones. It is safe for concurrent use.
type recordedIDs struct {
	mu   sync.Mutex
	code map[string][]buildid.Segment
}

// maxRecorded limits the number of files.
const maxRecorded = 4096

// saw adds a file.
func (r *recordedIDs) saw(info *buildid.Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.code[info.GNU]; ok {
		if !slices.Equal(known, info.Code) {
			r.code[info.GNU] = nil // one of the two has a wrong build ID
		}
		return
	}
	if r.code == nil || len(r.code) >= maxRecorded {
		r.code = map[string][]buildid.Segment{}
	}
	r.code[info.GNU] = info.Code
}

// virtual returns the symbol table's address for an offset in the file with this build ID, or false if it is unknown.
func (r *recordedIDs) virtual(id string, offset uint64) (uint64, bool) {
	r.mu.Lock()
	code := r.code[id]
	r.mu.Unlock()
	if len(code) == 0 {
		return 0, false
	}
	info := buildid.Info{Code: code}
	return info.Virtual(offset)
}
