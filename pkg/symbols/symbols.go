// Package symbols turns an address in a file into the name of the function that is there, with its
// file and line where they are known, and says why where it cannot.
//
// It knows files and addresses only. Which file a process has mapped where, package procmap finds out.
//
// # Addresses
//
// An address is an ELF virtual address: what the file's own symbol tables hold, not where a process
// has it. Of a frame that is not the innermost of its stack it is the address that the call returns
// to, which can belong to the next function already: look up one less.
//
// # Right or not at all
//
// A symbol covers the bytes that its size says and no more. A wrong name is worse than none.
//
// # Trust
//
// The files are under the control of the programs that run them. They are read with pread and never
// mapped to memory: whoever truncates a mapped file ends the process that has mapped it. Every read
// is bounded in bytes, in entries and in time (Limits). A panic costs the file that it happened at,
// and nothing else.
package symbols

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FileID tells one state of a file from all others on the machine. It is comparable.
type FileID struct {
	Dev, Inode uint64
	Size       int64
	// MtimeNS and CtimeNS are nanoseconds since 1970.
	MtimeNS, CtimeNS int64
	// Process is set for the perf map of a process only: a number that tells the process from others with the same
	// PID, made for example from its start time. A perf map grows, so its Size and times are 0 here.
	Process uint64
}

// VDSO is the code that the kernel gives each 64-bit process of this machine. A Store knows it from the
// start. Its addresses begin with 0: they are offsets in the area that /proc/PID/maps calls [vdso].
var VDSO = FileID{Inode: 1, Size: -1}

// Identify returns the FileID of an open file, which can be open with O_PATH.
func Identify(f *os.File) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileID{}, fmt.Errorf("looking at %s: %w", f.Name(), err)
	}
	return IdentifyStat(&st), nil
}

// IdentifyStat returns the FileID of what stat has returned.
func IdentifyStat(st *unix.Stat_t) FileID {
	return FileID{
		Dev: uint64(st.Dev), Inode: st.Ino, Size: st.Size, //nolint:unconvert // types differ by architecture
		MtimeNS: st.Mtim.Nano(), CtimeNS: st.Ctim.Nano(),
	}
}

// Symbol is a function in a file. Its strings are copies that a caller may keep.
type Symbol struct {
	// Name is as the symbol table has it: it may be mangled. A stub that jumps to a function of another
	// file is the function's name and "@plt".
	Name string
	// File and Line are where the source is, "" and 0 where that is not known.
	File string
	Line int
	// Source tells where the name is from.
	Source Source
	// Callers are there if Options.Inlined is set and the code at the address has been inlined: Symbol is
	// then the inlined function, and these are the functions that it was inlined into, the nearest first.
	// Line is in each of them where the call is. Without Options.Inlined, Symbol is what would be the last
	// of them.
	Callers []Symbol
}

// Source tells where a name is from.
type Source uint8

// The sources, in the order in which they are asked.
const (
	SourceNone      Source = iota
	SourceSymtab           // .symtab
	SourcePclntab          // .gopclntab, of Go programs
	SourceDebugFile        // .symtab of a separate debug file
	SourceMiniDebug        // .gnu_debugdata, a compressed .symtab
	SourceDynsym           // .dynsym: what a library exports
	SourcePLT              // a stub that calls a function of another file
	SourcePerfMap          // what a JIT compiler has written to /tmp/perf-PID.map
	SourceDWARF            // an inlined function of .debug_info
	numSources
)

var sourceNames = [numSources]string{"none", "symtab", "pclntab", "debug file", "gnu_debugdata", "dynsym", "plt", "perf map", "dwarf"}

// String returns a short name in plain words.
func (s Source) String() string {
	if s < numSources {
		return sourceNames[s]
	}
	return "unknown"
}

// State is the answer to a look-up: a name, or why there is none.
type State uint8

const (
	// Unknown says that the Store has not been asked to read the file, or has forgotten it: Request it.
	Unknown State = iota
	// Pending says that the file is being read, or waits for that.
	Pending
	// Named says that there is a name.
	Named
	// Outside says that the file has symbols, but none covers the address. Mostly these are programs without their
	// symbol table that still export some functions.
	Outside
	// NoSymbols says that the file was read and has no symbols at all.
	NoSymbols
	// Unreadable says that the file could not be opened or read, or not in time.
	Unreadable
	// Gone says that the file is not there any more, or is another one by now.
	Gone
	// NotELF says that the file is not of the kind that has symbols.
	NotELF
	// TooLarge says that the symbols do not fit in the Limits.
	TooLarge
	// Malformed says that the file contradicts itself.
	Malformed
	// Busy says that too many files wait to be read: Request it again later.
	Busy
	numStates
)

var stateNames = [numStates]string{"not read yet", "being read", "named", "outside any symbol", "no symbols", "unreadable", "gone", "not ELF", "too large", "malformed", "too much to read"}

// String returns a short name in plain words.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "unknown"
}

// Final reports whether asking again gives the same answer, for as long as the Store keeps the file or, where what made
// reading fail can pass, for at least half a minute.
func (s State) Final() bool { return s != Unknown && s != Pending && s != Busy }

// Limits bound what is read of one file.
type Limits struct {
	// Symbols is how many symbols are kept.
	Symbols int
	// Names is how many bytes of names, of functions and of files, are kept.
	Names int
	// Read is how many bytes are read.
	Read int64
	// Debug is how many bytes of debug information, unpacked, are read, if lines are asked for. They are in memory
	// while the file is read. A file that has more has its names without lines.
	Debug int64
	// Memory is how many bytes reading takes in memory for a time, in all: buffers, what is unpacked, and what becomes the
	// Table. What is let go of counts, too, as nobody knows when it is free.
	Memory int64
}

// DefaultLimits are enough for programs of some hundred megabytes.
func DefaultLimits() Limits {
	return Limits{Symbols: 2 << 20, Names: 64 << 20, Read: 1 << 30, Debug: 128 << 20, Memory: 224 << 20}
}

// budget is what is left of the limits of reading one file.
type budget struct{ read, memory int64 }

func (l Limits) budget() budget { return budget{l.Read, l.Memory} }
