package symtab

import (
	"errors"
	"fmt"
	"time"
)

// Reading a file can return these errors. Package symbols turns each into a State.
var (
	ErrNotELF    = errors.New("not an ELF file")
	ErrNoSymbols = errors.New("no symbols")
	ErrMalformed = errors.New("the file is inconsistent")
	ErrTooLarge  = errors.New("larger than the limits")
	// ErrTooSlow wraps ErrTooLarge, but the next read can succeed.
	ErrTooSlow = fmt.Errorf("%w: reading takes too long", ErrTooLarge)
)

// These constants limit a Table and the requests.
const (
	MaxSegments   = 256      // loaded segments of a file
	MaxLayers     = 64       // only JIT compilers have code more than 4 GiB apart
	MaxName       = 16 << 10 // bytes; C++ names can have some kilobytes
	MaxPath       = 4096     // bytes
	MaxCandidates = 8        // candidates for the debug file
	MaxWanted     = 4096     // addresses at a time
	MaxGoValues   = 4 << 20  // bytes of a table of values of a Go function
	MaxGoFiles    = 1024     // of a Go function
	MaxFact       = 64 << 10 // bytes of JSON
)

// Chunk is the size of one read of a table.
const Chunk = 256 << 10

// DefaultTimeout limits the time to read one file.
const DefaultTimeout = 10 * time.Second
