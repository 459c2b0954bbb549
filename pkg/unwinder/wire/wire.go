// Package wire is the stream from the unwinder's process to its starter. It has stacks with their frames, each once, and the
// events of gadgets with these stacks.
//
// The stream starts with Magic and Version, followed by messages: a length, a kind, and fields. Numbers
// are unsigned varints, texts a length and bytes. Tables (texts, files, mappings, frames, stacks,
// processes) are filled entry by entry; an entry's ID is its position, and 0 stands for none.
// KindReset empties all of them.
//
// The writer parses files and memory of processes that may be hostile, and may have been taken over by one. So the Reader trusts
// nothing. It checks lengths, counts and IDs before use, bounds tables, and ends the stream with an error for anything wrong.
package wire

import (
	"encoding/hex"
	"errors"
)

// Magic and Version start a stream. A reader takes only its own version: the two programs are built and
// installed together.
const (
	Magic   = "igunwind"
	Version = 4
)

// The limits of a stream. A Writer keeps them, a Reader enforces them.
const (
	MaxMessage  = 1 << 20 // bytes
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
	// MaxFlushSize limits the data between two KindFlush, in bytes of memory by estimate. Full tables take 200 MiB. Only a
	// writer that empties them repeatedly sends more.
	MaxFlushSize = 384 << 20
)

// ErrProtocol is the error for a stream that does not follow the protocol. Nothing more can be read from it.
var ErrProtocol = errors.New("the unwinder's stream is damaged")

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages.
const (
	KindHello   Kind = 1 + iota // the unwinder can work here
	KindRefused                 // it cannot: why
	KindReady                   // the kernel's part runs
	KindText                    // a text
	KindFile                    // a file with code
	KindMapping                 // a part of a file
	KindFrame                   // a frame
	KindStack                   // a stack
	KindProc                    // a process
	KindFlush                   // all stacks up to now are written: counters
	KindReset                   // all tables are empty
	KindUnwound                 // the stack of a gadget's event
	kindEnd
)

// FrameType is the kind of a frame's code.
type FrameType uint8

// The frame types.
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

var frameNames = [...]string{
	FrameUnknown: "", FrameNative: "native", FrameKernel: "kernel", FrameGo: "go", FramePython: "cpython",
	FrameJVM: "jvm", FrameV8: "v8js", FrameRuby: "ruby", FramePHP: "php", FramePerl: "perl",
	FrameDotnet: "dotnet", FrameBEAM: "beam", FrameLua: "luajit",
}

// String returns the name that the semantic convention's attribute profile.frame.type has for it, empty
// if it is un known.
func (t FrameType) String() string {
	if int(t) < len(frameNames) {
		return frameNames[t]
	}
	return ""
}

// File is a file with code.
type File struct {
	Name, Path            string // Name is the last part; Path may be empty, and is the process's own idea
	GNUBuildID, GoBuildID string
	Hash                  [16]byte // of parts of its content: htlhash
	Version               [16]byte // of this file alone, until it is written to
	Device, Inode         uint64   // as stat has them, 0 if unknown
	Proc                  uint32   // the PID of a process that had it mapped, 0 if unknown
	Low, High             uint64   // where it was mapped there: a name in /proc/PID/map_files

	hash string // Hash as text, made by the Reader
}

// HashText returns Hash in hexadecimal.
func (f *File) HashText() string {
	if f.hash != "" {
		return f.hash
	}
	return hex.EncodeToString(f.Hash[:])
}

// Mapping is a part of a file that is mapped. Start and End are virtual addresses of the ELF file.
type Mapping struct {
	File               *File
	Start, End, Offset uint64
}

// Frame is an entry of a stack.
type Frame struct {
	Type           FrameType
	Function, File string
	Line           uint64
	Address        uint64 // in the ELF file's virtual addresses, the call's in a caller; 0 if unknown
	Mapping        *Mapping
}

// Stack is a distinct stack, leaf first. It is shared by all events with it and not changed.
type Stack struct {
	// ID is the stack's own: no two stacks that Readers have made in this process share one.
	ID     uint64
	Frames []*Frame
	// Abort is why the unwinding ended before the program's entry; 0: it did not.
	Abort uint32
}

// Proc is a process. Its PID is that of the host's PID namespace.
type Proc struct {
	PID   uint32
	Start uint64 // nanoseconds since boot, 0 if unknown
	MntNS uint64 // the mount namespace's number, 0 if unknown
	Exe   string // the name of the executable, empty if unknown
}

// Label is a program's own description of its work.
type Label struct{ Key, Value string }

// Said is everything that a program has published of its thread's work.
type Said struct {
	Labels  []Label
	TraceID [16]byte
	SpanID  [8]byte
}

// Unwound is the stack of an event of a gadget's program. ID is the program's number for it: see gadgets/include/unwind_slot.h.
// The writer may have made up any ID.
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
	// Expected counts samples of processes whose executable is a known interpreter of it, and Missing
	// those of them without a frame of it.
	Expected, Missing uint64
}

// Stats are counters of one unwinder, from its start: Taken = Sent + Pending + all that was dropped. Events of gadgets count as
// samples do.
type Stats struct {
	Taken, Sent, Pending uint64
	// Full were dropped because too many different ones came before they could be written. Failed were dropped because reading
	// their process failed. Idle had no frame at all.
	Full, Failed, Idle uint64
	// KernelLost are samples that the kernel could not hand over. They are not in Taken.
	KernelLost uint64
	// NoProcess are samples of processes that could no longer be identified. They are sent.
	NoProcess uint64
	// KernelMemory is the memory of the eBPF maps and programs.
	KernelMemory uint64
	// Aborts counts stacks that are not complete, by reason.
	Aborts map[uint32]uint64
	// Languages are by FrameType.
	Languages [FrameTypes]Language
}

// Ready reports that the kernel's part runs.
type Ready struct {
	StartMillis uint64 // how long that took
}

// Counters are the unwinder's counters in a file that outlives it: CounterCount numbers of 64 bits in the machine's order, at
// these places. They show how much was lost if it is killed.
const (
	CounterTaken        = iota // as Stats.Taken
	CounterDropped             // as all dropped ones in Stats
	CounterPID                 // the PID of the process whose sample it works on, 0 between samples
	CounterReading             // the PID of the process whose files it reads, 0 in between
	CounterReaderThread        // the ID of the thread that reads them
	CounterReads               // how often it has begun to read the files of a process
	CounterCount
)
