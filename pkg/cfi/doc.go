// Package cfi tells which registers the caller of a function has: by the unwind rules (call frame information, section
// .eh_frame) of the file that the function is in. With them a copy of a stack, and the registers that go with it, are
// walked in user space, for code that keeps no frame pointer.
//
// It knows files and ELF virtual addresses only. Which file a process has mapped where, package procmap finds out.
//
// # Right or not at all
//
// A caller is what the rules say, of words that are in the copy. Registers that the rules do not mention stay known if the
// architecture's calling convention has functions keep them, and become unknown otherwise. What needs an unknown
// register has no answer.
//
// # Trust
//
// The files are under the control of the programs that run them, and so are registers and stacks. Files are read with
// pread and never mapped to memory. Rules are data, but some have programs in them: each has a bound of what it executes.
// A stack pointer that does not grow ends a walk, but for that of a signal's frame, where stacks change: who walks bounds
// how many frames there are.
package cfi

// Result is what Step and FramePointer have found.
type Result uint8

const (
	// Caller says that the registers are those of the caller now. With any other Result they are as they were.
	Caller Result = iota
	// Outermost says that there is no caller.
	Outermost
	// NoRule says that the file has no rule for the address.
	NoRule
	// OutOfCopy says that a word is needed which is not in the copy of the stack.
	OutOfCopy
	// Bad says that the rules contradict themselves, are of a kind that is not understood, need a register that is not
	// known, or that the stack pointer does not grow.
	Bad
	numResults
)

var resultNames = [numResults]string{"caller", "outermost", "no rule", "out of the copy", "bad"}

// String returns a short name in plain words.
func (r Result) String() string {
	if r < numResults {
		return resultNames[r]
	}
	return "unknown"
}
