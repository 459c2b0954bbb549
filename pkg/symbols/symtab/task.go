package symtab

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"
)

// Reader reads files. Its Store closes it.
type Reader interface {
	// Read performs a task and ends soon after ctx. cpu is its CPU time outside of the calling thread. One goroutine calls Read
	// for one task after another. If Options.Fetch is set, two goroutines call Read.
	Read(ctx context.Context, t *Task) (table *Table, cpu time.Duration, err error)
	// Wait waits until the Reader can try a task, or ctx ends.
	Wait(ctx context.Context)
	Close()
}

// taskKind says what a Task reads.
type taskKind uint8

// These are the kinds of tasks.
const (
	readELF       taskKind = iota // a table without Go's functions
	ReadFunctions                 // Old with more of Go's functions
	ReadPerfMap                   // a table that continues Old
	ReadDebugFile                 // the table of a debug file, without lines
	ReadLines                     // a table with Lines only
	ReadFact                      // a table with a Fact only
	decodeBytes                   // decodes bytes, not a file: see Conn.Ask
	numTaskKinds
)

// Task is a request to read a file.
type Task struct {
	Limits  Limits
	Kind    taskKind
	ID      FileID
	Opened  *os.File
	Size    int64
	timeout time.Duration // replaces the context in the other process
	Old     *Table
	// Functions are the requested Go functions.
	Functions []GoRange
	// Base is the start of the code whose lines are requested.
	Base  uint64
	Debug DebugFiles // nil: there are none
	Fact  string     // name of the requested fact
	bytes []byte     // bytes to decode
	Room  int64      // maximum memory of the table, 0: no limit; above it, lines are dropped
}

// FactInfo is the fact that identifies a file, a buildid.Info.
const FactInfo = "info"

// File returns the identity of the file. If the reader crashes, the caller blames this file.
func (t *Task) File() FileID { return t.ID }

// Brief reports whether a task is short.
func (t *Task) Brief() bool { return t.Kind == ReadFact }

// GoRange is a Go function's number and code size in bytes.
type GoRange struct{ Number, Size uint32 }

// ErrReader means that the reader exited. The file is not known to be the cause.
var ErrReader = errors.New("the file reader exited")

// DebugFiles opens candidates for a file's debug file.
type DebugFiles interface {
	// Candidate opens the n-th candidate and returns its size. If f is nil, there may be a next candidate, unless last is set.
	Candidate(by DebugKey, n int) (f *os.File, size int64, last bool)
}

// DebugKey identifies a debug file by one of its fields.
type DebugKey struct {
	ID   string // the build ID, in hexadecimal
	Link string // the file name in .gnu_debuglink, without folder
}

// Valid reports whether a key is safe to search for.
func (k DebugKey) Valid() bool {
	if k.ID != "" {
		return len(k.ID) > 2 && len(k.ID) <= maxBuildID && k.Link == "" && strings.Trim(k.ID, "0123456789abcdef") == ""
	}
	return k.Link != "" && len(k.Link) <= MaxPath && k.Link != "." && k.Link != ".." && !strings.ContainsAny(k.Link, "/\x00")
}

// maxBuildID limits the length of a build ID in hexadecimal digits.
const maxBuildID = 128
