package stack

import "golang.org/x/sys/unix"

// Outcome is the result of reading a stack.
type Outcome uint8

// The outcomes of a stack.
const (
	// OK: the frames are the stack that the kernel recorded.
	OK Outcome = iota
	// Empty: there was no stack to record, so nothing is missing. Either the program was in user mode when its kernel stack was
	// requested, or it is a kernel thread without a user stack, or the gadget does not collect this kind of stack.
	Empty
	// Lost: there was a stack, and it did not arrive. The stack map was full, another stack took its place, or the entry was
	// removed before it was read.
	Lost
	// Truncated: the stack had as many frames as the kernel records, more than MaxFrames, or more
	// than MaxTextLen bytes of text. The leaf's end of it was kept.
	Truncated
	// Partial: the known part of the stack is in other fields of the row, and need not reach the program's entry.
	Partial
)

// Absence is the reason for a stack without frames.
type Absence uint8

// The reasons for a stack without frames.
const (
	// NotCollected: the gadget did not collect it.
	NotCollected Absence = iota
	// NoRoom: the stack map was full, or its place was taken by another stack.
	NoRoom
	// Gone: it was removed from the stack map before it was read.
	Gone
	// Refused: the kernel could not take it, for any other reason.
	Refused
	// NoneThere: there are no frames of this kind. The program was in user mode when its kernel stack was requested, or it is a
	// kernel thread, which has no user stack.
	NoneThere
	// NoText: the field with its text is empty, and the row says no more.
	NoText

	// NumAbsences is how many there are.
	NumAbsences = int(NoText) + 1
)

// WhyAbsent returns why a stack has no text, from the stack ID that the eBPF program stored. That is the result of bpf_get_stackid;
// a negative number is an error. collected is false if the gadget recorded no ID.
//
// The kernel's errors (kernel/bpf/stackmap.c): EFAULT says that there are no frames of the requested kind, as in every sample
// that interrupts user code; EEXIST and ENOMEM, that the map has no place for this stack. Gadgets store -1 (bpf_get_stackid does
// not return EPERM) where they did not ask. A valid ID without a text is a stack that was removed from the map.
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

// Missing returns the outcome of a stack without text. Its arguments are those of WhyAbsent.
func Missing(id int32, collected bool) Outcome {
	switch WhyAbsent(id, collected) {
	case NotCollected, NoneThere:
		return Empty
	}
	return Lost
}
