package stack

import "golang.org/x/sys/unix"

// Outcome is the result of reading a stack.
type Outcome uint8

// These are the outcomes of a stack.
const (
	// OK means that the frames are the stack as the kernel recorded it.
	OK Outcome = iota
	// Empty means that there was no stack, so nothing is missing. Either the gadget does not collect this kind of stack, or none
	// existed. A program in user mode has no kernel stack, and a kernel thread has no user stack.
	Empty
	// Lost means that a stack existed but did not arrive. The stack map was full, another stack took its place, or the entry was
	// removed before it was read.
	Lost
	// Truncated means that the stack had as many frames as the kernel records, more than MaxFrames, or a text of more than
	// MaxTextLen bytes. The innermost frames were kept.
	Truncated
	// Partial means that the known part of the stack is in other fields of the row. It might not reach the program's entry.
	Partial
)

// Absence is the reason for a stack without frames.
type Absence uint8

// These are the reasons for a stack without frames.
const (
	// NotCollected means that the gadget did not collect the stack.
	NotCollected Absence = iota
	// NoRoom means that the stack map was full, or another stack took the stack's place.
	NoRoom
	// Gone means that the stack was removed from the stack map before it was read.
	Gone
	// Refused means that the kernel could not record the stack for any other reason.
	Refused
	// NoneThere means that there are no frames of this kind. The program was in user mode when its kernel stack was requested,
	// or it is a kernel thread, which has no user stack.
	NoneThere
	// NoText means that the stack's text is empty, and the row gives no reason.
	NoText

	// NumAbsences is the number of reasons.
	NumAbsences = int(NoText) + 1
)

// WhyAbsent returns the reason why a stack has no text. It takes the stack ID that the eBPF program stored. The ID is the
// result of bpf_get_stackid, and a negative number is an error. collected is false if the gadget recorded no ID.
//
// The kernel's errors are in kernel/bpf/stackmap.c. EFAULT means that there are no frames of the requested kind. This happens
// in every sample of user code. EEXIST and ENOMEM mean that the map has no room for this stack. Gadgets store -1 if they did
// not request a stack, because bpf_get_stackid does not return EPERM. A valid ID without a text belongs to a stack that was
// removed from the map.
func WhyAbsent(id int32, collected bool) Absence {
	switch {
	case !collected, id == -1:
		return NotCollected
	case id == -int32(unix.EFAULT):
		return NoneThere
	case id == -int32(unix.EEXIST), id == -int32(unix.ENOMEM):
		return NoRoom
	case id < 0:
		return Refused
	}
	return Gone
}

// Missing returns the outcome of a stack without text. Its arguments are the same as for WhyAbsent.
func Missing(id int32, collected bool) Outcome {
	switch WhyAbsent(id, collected) {
	case NotCollected, NoneThere:
		return Empty
	}
	return Lost
}
