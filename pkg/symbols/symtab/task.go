package symtab

import (
	"context"
	"errors"
	"os"
	"time"
)

// Reader reads files. A Store has one, which it closes.
type Reader interface {
	// Read performs a task. cpu is the CPU time that this has taken outside of the calling thread. It is called for one task after the
	// other, and by two goroutines if Options.Fetch is set. It ends soon after ctx.
	Read(ctx context.Context, t *Task) (table *Table, cpu time.Duration, err error)
	// Wait waits until a task can be tried, or ctx ends.
	Wait(ctx context.Context)
	Close()
}

// taskKind is the subject of a Task.
type taskKind uint8

// The kinds of tasks.
const (
	readELF       taskKind = iota // a table without any of Go's functions
	ReadFunctions                 // a table with some more of Go's functions than Old has
	ReadPerfMap                   // a table that begins with Old
	ReadDebugFile                 // the table of a debug file, without its lines
	ReadLines                     // a table that has nothing but Lines
	ReadFact                      // a table that has nothing but a Fact
	decodeBytes                   // no file: what the other process makes of bytes, see Conn.Ask
	numTaskKinds
)

// Task is one read of a file.
type Task struct {
	Reading
	Kind    taskKind
	ID      FileID
	Opened  *os.File
	Size    int64
	timeout time.Duration // set where the context does not come along
	Old     *Table
	// Functions are wanted of Go's.
	Functions []GoRange
	// Base is the start of the code with the wanted lines.
	Base  uint64
	Debug DebugFiles // nil: there are none
	Fact  string     // which one is read
	bytes []byte     // to decode
	Room  int64      // what the table may take of memory, 0: anything; past it, it has no lines
}

// FactInfo is the fact that identifies a file: a buildid.Info.
const FactInfo = "info"

// File is the file to read: its identity tells which file is to blame if reading it ends the reader.
func (t *Task) File() FileID { return t.ID }

// Brief reports whether a task is short.
func (t *Task) Brief() bool { return t.Kind == ReadFact }

// GoRange is a Go function by its number, and how many bytes its code has.
type GoRange struct{ Number, Size uint32 }

// ErrReader says that a file could not be read because its reader ended, without a sign that the file is at fault.
var ErrReader = errors.New("the reader of files ended")

// DebugFiles opens files that may be the debug file of another one.
type DebugFiles interface {
	// Candidate opens the n-th of them, and returns its size. Without a file there may be a next one, unless last is set.
	Candidate(by DebugKey, n int) (f *os.File, size int64, last bool)
}

// DebugKey is how a debug file is found: by one of the two.
type DebugKey struct {
	ID   string // the build ID, in hexadecimal
	Link string // the name in .gnu_debuglink, which has no folder
}

// Valid reports whether a key can be searched for.
func (k DebugKey) Valid() bool {
	if k.ID != "" {
		for _, c := range []byte(k.ID) {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
		return len(k.ID) > 2 && len(k.ID) <= maxBuildID && k.Link == ""
	}
	if k.Link == "" || len(k.Link) > MaxPath || k.Link == "." || k.Link == ".." {
		return false
	}
	for _, c := range []byte(k.Link) {
		if c == '/' || c == 0 {
			return false
		}
	}
	return true
}

// maxBuildID limits the length of a build ID, in hexadecimal digits.
const maxBuildID = 128
