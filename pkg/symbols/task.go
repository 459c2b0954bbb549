package symbols

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
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

// taskKind is what a Task is about.
type taskKind uint8

const (
	readELF       taskKind = iota // a table without any of Go's functions
	readFunctions                 // a table with some more of Go's functions than Old has
	readPerfMap                   // a table, of which Old has the beginning
	readDebugFile                 // the table of a debug file, which is put before that of Old
	decodeBytes                   // no file: what the other process makes of bytes, see Conn.Ask
	numTaskKinds
)

// Task is one read of a file.
type Task struct {
	Reading
	kind    taskKind
	id      FileID
	file    *os.File
	size    int64
	timeout time.Duration // set where the context does not come along
	old     *Table
	// functions are wanted of Go's.
	functions []goRange
	// base is where the code of Old begins.
	base  uint64
	debug debugFiles // nil: there are none
	room  int64      // what the table may take of memory, 0: anything; past it, it has no lines
	bytes []byte     // to decode
}

// File is what is read: its identity tells who is to blame if reading it ends the reader.
func (t *Task) File() FileID { return t.id }

// goRange is a Go function by its number, and how many bytes its code has.
type goRange struct{ number, size uint32 }

// heavy is how much memory reading a file may have taken, in bytes, that is left to the collector's own pace.
const heavy = 32 << 20

// perform performs a task in this process. A panic becomes an error for this file only.
func (t *Task) perform(ctx context.Context) (table *Table, err error) {
	defer func() {
		if p := recover(); p != nil {
			table, err = nil, fmt.Errorf("%w: reading it ends in %v", ErrMalformed, p)
		}
	}()
	left := t.Limits.budget()
	t.left = &left
	defer func() {
		if t.Limits.Memory-left.memory > heavy {
			debug.FreeOSMemory() // before the next file takes as much: the collector lets the heap grow by what is in use now
		}
	}()
	switch t.kind {
	case readFunctions:
		more := *t.old
		if more.golang, err = t.old.golang.loadFunctions(newReader(ctx, t.file, t.size, t.Reading), t.functions, t.Inlined, t.Limits); err != nil {
			return nil, err
		}
		return &more, nil
	case readPerfMap:
		table, err = ReadPerfMap(ctx, t.file, t.size, t.old, t.Limits)
	case readDebugFile:
		table, err = readDebugTable(ctx, t.file, t.size, t.Reading, t.base)
	default:
		table, err = readTable(ctx, t.file, t.size, t.Reading, t.debug)
	}
	if t.room == 0 {
		return table, err
	}
	if table = table.within(t.room); table != nil && table.Bytes() > t.room {
		return nil, fmt.Errorf("%w: a table of %d bytes", ErrTooLarge, table.Bytes())
	}
	return table, err
}

// here reads files in this process.
type here struct{}

// Read implements Reader.
func (here) Read(ctx context.Context, t *Task) (*Table, time.Duration, error) {
	table, err := t.perform(ctx)
	return table, 0, err
}

// Wait implements Reader.
func (here) Wait(context.Context) {}

// Close implements Reader.
func (here) Close() {}

// ErrReader says that a file could not be read because what reads files ended, and not why the file would be at fault.
var ErrReader = errors.New("the reader of files ended")

// debugFiles opens files that may be the debug file of another one.
type debugFiles interface {
	// candidate opens the n-th of them, and returns its size. Without a file there may be a next one, unless last is set.
	candidate(by debugKey, n int) (f *os.File, size int64, last bool)
}

// debugKey is how a debug file is found: by one of the two.
type debugKey struct {
	id   string // the build ID, in hexadecimal
	link string // the name in .gnu_debuglink, which has no folder
}

// valid tells whether a key is one that can be looked for.
func (k debugKey) valid() bool {
	if k.id != "" {
		for _, c := range []byte(k.id) {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
		return len(k.id) > 2 && len(k.id) <= maxBuildID && k.link == ""
	}
	if k.link == "" || len(k.link) > maxPath || k.link == "." || k.link == ".." {
		return false
	}
	for _, c := range []byte(k.link) {
		if c == '/' || c == 0 {
			return false
		}
	}
	return true
}

// maxBuildID is how long a build ID may be, in hexadecimal digits.
const maxBuildID = 128
