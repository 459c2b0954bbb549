package fieldmap

import (
	"slices"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// recordedIDs knows where the code is in files with build IDs that a gadget has recorded. The kernel records an offset in the
// file next to a build ID. As long as the process is there its files are known, and with them the address that the file's symbol
// tables have for the offset. For other processes with that file it is the same, even after their end. It is safe for concurrent
// use.
type recordedIDs struct {
	mu   sync.Mutex
	code map[string][]buildid.Segment
}

// maxRecorded limits the known files.
const maxRecorded = 4096

// saw notes a file.
func (r *recordedIDs) saw(info *buildid.Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.code[info.GNU]; ok {
		if !slices.Equal(known, info.Code) {
			r.code[info.GNU] = nil // one of the two has a false build ID
		}
		return
	}
	if r.code == nil || len(r.code) >= maxRecorded {
		r.code = map[string][]buildid.Segment{}
	}
	r.code[info.GNU] = info.Code
}

// virtual returns the symbol table's address for that offset in the file of a build ID, false if it is unknown.
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
