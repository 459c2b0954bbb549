package symbols

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/symtab"
)

// The types of package symtab say what is known of a file, and how it is asked for. The Store shares them with what reads files.
type (
	// FileID identifies a file.
	FileID = symtab.FileID
	// Symbol is what is known of an address.
	Symbol = symtab.Symbol
	// Source is where a name is from.
	Source = symtab.Source
	// State is the answer to a look-up.
	State = symtab.State
	// Limits bound what is read of a file.
	Limits = symtab.Limits
	// Reading is what a file is read with.
	Reading = symtab.Reading
	// Table has the symbols of a file.
	Table = symtab.Table
	// Task is one read of a file.
	Task = symtab.Task
	// Reader does tasks.
	Reader = symtab.Reader
	// Conn is the way to another process that does tasks.
	Conn = symtab.Conn
)

// Where names are from.
const (
	SourceNone      = symtab.SourceNone
	SourceSymtab    = symtab.SourceSymtab
	SourcePclntab   = symtab.SourcePclntab
	SourceDebugFile = symtab.SourceDebugFile
	SourceMiniDebug = symtab.SourceMiniDebug
	SourceDynsym    = symtab.SourceDynsym
	SourcePLT       = symtab.SourcePLT
	SourcePerfMap   = symtab.SourcePerfMap
	SourceDWARF     = symtab.SourceDWARF
)

// The answers to a look-up.
const (
	Unknown    = symtab.Unknown
	Pending    = symtab.Pending
	Named      = symtab.Named
	Outside    = symtab.Outside
	NoSymbols  = symtab.NoSymbols
	Unreadable = symtab.Unreadable
	Gone       = symtab.Gone
	NotELF     = symtab.NotELF
	TooLarge   = symtab.TooLarge
	Malformed  = symtab.Malformed
	Busy       = symtab.Busy
)

// The errors of reading a file.
var (
	ErrNotELF    = symtab.ErrNotELF
	ErrNoSymbols = symtab.ErrNoSymbols
	ErrMalformed = symtab.ErrMalformed
	ErrTooLarge  = symtab.ErrTooLarge
	ErrTooSlow   = symtab.ErrTooSlow
	ErrReader    = symtab.ErrReader
)

// VDSO is the code that the kernel gives each 64-bit process of this machine.
var VDSO = symtab.VDSO

// DefaultLimits are enough for programs of some hundred megabytes.
func DefaultLimits() Limits { return symtab.DefaultLimits() }

// NewConn returns the Conn of a socket of the type SOCK_STREAM, and closes f.
func NewConn(f *os.File) (*Conn, error) { return symtab.NewConn(f) }

// Identify returns the FileID of an open file, which can be open with O_PATH.
func Identify(f *os.File) (FileID, error) { return symtab.Identify(f) }

// IdentifyStat returns the FileID of what stat has returned.
func IdentifyStat(st *unix.Stat_t) FileID { return symtab.IdentifyStat(st) }
