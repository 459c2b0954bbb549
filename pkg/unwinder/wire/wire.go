// Package wire defines the stream from the unwinder's process to its starter. The stream contains each stack with its frames
// once, and gadgets' events that refer to these stacks.
//
// The stream starts with Magic and Version. Messages follow: a length, a kind, and fields. A number is an unsigned varint; a
// text is a length and bytes. Tables (texts, files, mappings, frames, stacks, processes) are filled entry by entry. An entry's
// ID is its position, and 0 means none. KindReset empties all tables.
//
// The writer parses files and memory of processes. A hostile process can have taken it over. So the Reader trusts nothing. It
// checks lengths, counts and IDs before use, limits tables, and ends a damaged stream with an error.
package wire

import (
	"encoding/hex"
	"errors"
)

// Magic and Version start a stream. A reader only accepts its own version, because the two programs are built and installed
// together.
const (
	Magic   = "igunwind"
	Version = 5
)

// These are the limits of a stream. A Writer keeps them, and a Reader enforces them.
const (
	MaxMessage  = 1 << 20 // in bytes
	MaxText     = 4096    // bytes of one text
	MaxTexts    = 1 << 18
	MaxTextSize = 32 << 20 // bytes of all texts
	MaxFiles    = 1 << 16
	MaxMappings = 1 << 17
	MaxFrames   = 1 << 18
	MaxDepth    = 1024 // frames of one stack
	MaxStacks   = 1 << 16
	MaxLinks    = 4 << 20 // frames of all stacks
	MaxProcs    = 1 << 16
	MaxLabels   = 10
	MaxUnwound  = 1 << 17 // between two KindFlush
	MaxReasons  = 256
	// MaxFlushSize limits the estimated memory in bytes of the data between two KindFlush. Full tables take 200 MiB. Only a
	// writer that empties them repeatedly sends more.
	MaxFlushSize = 384 << 20
)

// ErrProtocol is the error for a stream that violates the protocol. Nothing more can be read from it.
var ErrProtocol = errors.New("the unwinder's stream is damaged")

// Kind is the kind of a message.
type Kind uint8

// These are the kinds of messages.
const (
	KindHello   Kind = 1 + iota // the unwinder can work here
	KindRefused                 // the unwinder cannot work here, with the reason
	KindReady                   // the unwinder's eBPF programs run
	KindText                    // a text
	KindFile                    // a file with code
	KindMapping                 // a mapped part of a file
	KindFrame                   // a frame
	KindStack                   // a stack
	KindProc                    // a process
	KindFlush                   // the end of a flush, with the counters
	KindReset                   // empties all tables
	KindUnwound                 // the stack of a gadget's event
	kindEnd
)

// FrameType is the kind of code in a frame.
type FrameType uint8

// These are the frame types.
const (
	FrameUnknown FrameType = iota
	FrameNative
	FrameKernel
	FrameGo
	FramePython
	FrameJVM
	FrameV8
	FrameRuby
	FramePHP
	FramePerl
	FrameDotnet
	FrameBEAM
	FrameLua
	frameEnd
)

// FrameTypes is the number of frame types.
const FrameTypes = int(frameEnd)

// FrameNames holds the names of the frame types. Attribute is the value of the semantic conventions' attribute
// profile.frame.type. Setting is the language's name in settings. Program is the start of the names of the interpreter's
// executables. Title is for messages. Missing names are empty.
var FrameNames = [FrameTypes]struct{ Attribute, Setting, Program, Title string }{
	FrameUnknown: {"", "", "", "unknown code"},
	FrameNative:  {"native", "native", "", "native code"},
	FrameKernel:  {"kernel", "", "", "the kernel"},
	FrameGo:      {"go", "go", "", "Go"},
	FramePython:  {"cpython", "python", "python", "Python"},
	FrameJVM:     {"jvm", "java", "java", "Java"},
	FrameV8:      {"v8js", "node", "node", "Node.js"},
	FrameRuby:    {"ruby", "ruby", "ruby", "Ruby"},
	FramePHP:     {"php", "php", "php", "PHP"},
	FramePerl:    {"perl", "perl", "perl", "Perl"},
	FrameDotnet:  {"dotnet", "dotnet", "dotnet", ".NET"},
	FrameBEAM:    {"beam", "beam", "beam", "BEAM"},
	FrameLua:     {"luajit", "lua", "luajit", "LuaJIT"},
}

// String returns the value of the semantic conventions' attribute profile.frame.type, or "" if there is none.
func (t FrameType) String() string {
	if int(t) < FrameTypes {
		return FrameNames[t].Attribute
	}
	return ""
}

// File is a file with code.
type File struct {
	Name, Path            string // Name is the last part; Path can be empty, and is the process's own claim
	GNUBuildID, GoBuildID string
	Hash                  [16]byte // htlhash, over parts of the content
	Version               [16]byte // identifies this file until it is modified
	Device, Inode         uint64   // from stat, 0 if unknown
	Proc                  uint32   // the PID of a process that had it mapped, 0 if unknown
	Low, High             uint64   // its addresses in that process, which are its name in /proc/PID/map_files

	hash string // Hash in hexadecimal, set by the Reader
}

// HashText returns Hash in hexadecimal.
func (f *File) HashText() string {
	if f.hash != "" {
		return f.hash
	}
	return hex.EncodeToString(f.Hash[:])
}

// Mapping is a mapped part of a file. Start and End are virtual addresses of the ELF file.
type Mapping struct {
	File               *File
	Start, End, Offset uint64
}

// Frame is an entry of a stack.
type Frame struct {
	Type           FrameType
	Function, File string
	Line           uint64
	Address        uint64 // a virtual address of the ELF file (in a caller, of the call); 0 if unknown
	Mapping        *Mapping
}

// Stack is a distinct stack, leaf first. All its events share it, and it must not change.
type Stack struct {
	// ID is unique among the stacks of all Readers in this process.
	ID     uint64
	Frames []*Frame
	// Abort is the reason why unwinding ended early, or 0.
	Abort uint32
}

// Proc is a process. Its PID is in the host's PID namespace.
type Proc struct {
	PID   uint32
	Start uint64 // in nanoseconds since boot, 0 if unknown
	MntNS uint64 // the inode number of the mount namespace, 0 if unknown
	Exe   string // the name of the executable, empty if unknown
}

// Label is a label that a program attaches to its work.
type Label struct{ Key, Value string }

// Said holds everything that a program has published about its thread's work.
type Said struct {
	Labels  []Label
	TraceID [16]byte
	SpanID  [8]byte
}

// Unwound is the stack of a gadget's event. ID is the event's number, which its eBPF program assigned: see
// gadgets/include/unwind_slot.h. The writer can have invented it.
type Unwound struct {
	ID    uint64
	Stack *Stack
	Proc  *Proc
	Said
}

// Language counts the samples of a language.
type Language struct {
	// Frames counts samples with at least one frame of the language.
	Frames uint64
	// Expected counts samples of processes whose executable is a known interpreter of the language. Missing counts the samples
	// in Expected that have no frame of the language.
	Expected, Missing uint64
}

// Stats holds the counters of one unwinder since its start. Gadgets' events count as samples.
type Stats struct {
	// Taken counts all samples, including dropped ones.
	Taken uint64
	// Full counts samples that were dropped because too many different samples arrived between two writes. Failed counts
	// samples whose process could not be read. Idle counts samples without any frame.
	Full, Failed, Idle uint64
	// KernelLost counts samples that the kernel could not deliver. They are not in Taken.
	KernelLost uint64
	// NoProcess counts samples of processes that could no longer be identified. They are sent.
	NoProcess uint64
	// KernelMemory is the memory of the eBPF maps and programs in bytes.
	KernelMemory uint64
	// Aborts counts incomplete stacks by reason.
	Aborts map[uint32]uint64
	// Languages is indexed by FrameType.
	Languages [FrameTypes]Language
}

// Ready reports that the unwinder's eBPF programs run.
type Ready struct {
	StartMillis uint64 // the duration of the start
}

// These are indexes of the unwinder's counters in a file that outlives it. The file has CounterCount 64-bit numbers in native
// byte order. It shows how much was lost if the unwinder is killed.
const (
	CounterTaken        = iota // equal to Stats.Taken
	CounterPID                 // the PID of the process whose sample it works on, 0 between samples
	CounterReading             // the PID of the process whose files it reads, 0 between reads
	CounterReaderThread        // the ID of the thread that reads files
	CounterReads               // the number of reads that have begun
	CounterCount
)
