package symtab

import (
	"errors"
	"fmt"
	"time"
)

// The errors of reading a file. package symbols turns each into a State.
var (
	ErrNotELF    = errors.New("not an ELF file")
	ErrNoSymbols = errors.New("no symbols")
	ErrMalformed = errors.New("the file is inconsistent")
	ErrTooLarge  = errors.New("larger than the limits")
	// ErrTooSlow is an ErrTooLarge that need not be one the next time.
	ErrTooSlow = fmt.Errorf("%w: reading takes too long", ErrTooLarge)
)

// These bound a Table, and the requests.
const (
	MaxSegments   = 256      // that are loaded of a file
	MaxLayers     = 64       // only the code of a JIT compiler is further apart than 4 GiB
	MaxName       = 16 << 10 // bytes; names of C++ can have some kilobytes
	MaxPath       = 4096     // bytes
	MaxCandidates = 8        // files that may be the debug file
	MaxWanted     = 4096     // addresses at a time
	MaxGoValues   = 4 << 20  // bytes of one table of values of a Go function
	MaxGoFiles    = 1024     // of a Go function
	MaxFact       = 64 << 10 // bytes of JSON
)

// Chunk is how many bytes of a table are read at once.
const Chunk = 256 << 10

// DefaultTimeout is how long reading one file may take.
const DefaultTimeout = 10 * time.Second
