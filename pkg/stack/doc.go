// Package stack turns Inspektor Gadget's call stack data into frames.
//
// Inspektor Gadget formats a stack as text: a list of names (or addresses, or build IDs), leaf first, each followed by "; ".
// Kernel reads the text of a kernel stack, and adds addresses from the gadget's stack map. User reads all other texts. If a row
// only holds a stack ID, Kernel and User read the stack from the stack maps and find the names themselves. A Janitor keeps the
// stack maps from filling up. Demangle makes C++ and Rust names readable. Call it once per name, when a profile is encoded.
//
// The text comes from untrusted programs. Every result is limited to MaxFrames frames with names of at most MaxNameLen bytes,
// from at most MaxTextLen bytes of text. Names can be invalid UTF-8. The encoder replaces invalid bytes.
//
// # Addresses
//
// Frame.Address depends on the kind of frame:
//   - For a kernel frame, it is the distance from the kernel's _stext, so the kernel's load address (KASLR) stays secret. In a
//     module with a build ID, it is the distance from the start of the module's code. Elsewhere (BPF programs), and if _stext
//     is unknown, it is 0. With KernelOptions.RawAddresses, it is the address itself.
//   - For a user frame with a known build ID, it is the offset in the file. See User.
//   - For any other user frame, it is the address in the process.
//
// The kernel records these addresses. A leaf's address is the instruction pointer. A caller's address is the return address,
// one instruction past the call.
//
// # Frames without a name
//
// A frame with an address and no symbol has an empty name. No function is named after an address. A frame with neither name nor
// address is named Unknown. So other frames keep their depth, and no empty location is sent.
package stack

// These are the limits of one stack.
const (
	// MaxFrames is the maximum number of frames of a stack. A longer stack loses its outermost frames. The kernel's own limit is
	// 127 by default, but interpreters' stacks can be deeper.
	MaxFrames = 1024
	// MaxNameLen is the maximum length of a name in bytes. A longer name is cut between runes.
	MaxNameLen = 4096
	// MaxTextLen is the maximum number of bytes that are read from a text. An entry that this limit cuts is dropped.
	MaxTextLen = 1 << 20
)

// Unknown is the name of a frame with neither symbol nor address. Inspektor Gadget also writes it for symbols that it does not
// find. In Inspektor Gadget's texts, it means that the frame has no name.
const Unknown = "[unknown]"

// separator follows each entry of a list.
const separator = "; "
