// Package stack turns Inspektor Gadget's data of a call stack into frames.
//
// Inspektor Gadget hands a stack over as text: a list of names (or addresses, or build IDs), leaf
// first, each entry followed by "; ". Kernel, User and AppendPlain read the three forms of it;
// Kernel adds addresses from the gadget's stack map. Where a row has only the ID of a stack, Kernel and
// User read it from the stack maps and find the names themselves. A Janitor keeps the stack maps from filling
// up. Demangle makes C++ and Rust names readable and is meant to be called once per name, when a
// profile is encoded.
//
// The text comes from programs that nobody vouches for. Every result is bounded: MaxFrames frames of at most MaxNameLen bytes
// each, from at most MaxTextLen bytes of text. Names are not checked for being UTF-8: the encoder replaces invalid bytes.
//
// # Addresses
//
// Frame.Address holds, for
//   - a kernel frame: the distance from the kernel's _stext, so that the place where the kernel was
//     loaded (KASLR) stays secret; for one in a module that has a build ID, the distance from the
//     start of the module's code; 0 elsewhere (BPF programs) and where _stext is unknown. With
//     KernelOptions.RawAddresses the address itself.
//   - a user frame whose build ID is known: the offset in the file. See User.
//   - any other user frame: the address in the process.
//
// All of them are as the kernel recorded them. The leaf's is the instruction pointer; a caller's is its return address, one
// instruction past the call.
//
// # Frames without a name
//
// A frame with an address and no symbol has an empty name. A function is never named after an address. A frame without name and
// address is named Unknown. So the frames around it keep their depth, and no empty location is sent.
package stack

// Limits of what one stack may hold.
const (
	// MaxFrames is the number of frames of a stack. Of a longer one the leaf's end is kept.
	// The kernel's own limit is 127 by default; interpreters' stacks can be deeper.
	MaxFrames = 1024
	// MaxNameLen is the length of a name in bytes. A longer one is cut where a rune begins.
	MaxNameLen = 4096
	// MaxTextLen is how much of a text is read, in bytes. Where it cuts an entry, that entry
	// is left out.
	MaxTextLen = 1 << 20
)

// Unknown is the name of a frame that has neither a symbol nor an address. Inspektor Gadget writes
// it too, for symbols that it does not find; there it means that the frame has no name.
const Unknown = "[unknown]"

// separator stands between two entries of a list, and after the last one.
const separator = "; "
