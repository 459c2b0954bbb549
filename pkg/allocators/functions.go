// Package allocators has the functions of memory allocators in files, as package symbols/parse finds them.
package allocators

import (
	"errors"
	"math"
)

// Program is one of the gadget's programs, by its place in the map allocator_programs. What functions it is for is in the name: the
// arguments that it looks at.
type Program uint32

// The programs.
const (
	SizeFirst Program = iota
	SizeSecond
	SizeThird
	CountSize
	AddressSize
	Address // frees
	Returned
	Returning
	Nothing
	Programs = Nothing + 1
	// Throws is a function that SizeFirst is for, and that ends with an exception where there is no memory.
	Throws = Programs
)

// Function is one of an allocator's functions in a file.
type Function struct {
	Program Program
	Offset  uint64 // in the file
}

// Fact is the name of the request to package symbols.
const Fact = "allocator"

// MaxFunctions is how many functions of a file get a probe.
const MaxFunctions = 64

// MaxExits is at how many places one of them may return.
const MaxExits = 32

// Found is the result for a file.
type Found struct {
	// Functions are those of its allocator, the most called first.
	Functions []Function
	// Exits are where those return that throw, by their offset.
	Exits map[uint64][]uint64
	// Quick has the offsets of those with a first instruction that the kernel emulates under a probe.
	Quick map[uint64]bool
	// TooLarge says that nothing was found because there was too much to read.
	TooLarge bool
}

// Check returns an error for what nobody finds: the process that reads files can have become hostile.
func (f *Found) Check() error {
	right := len(f.Functions) <= MaxFunctions && len(f.Exits) <= MaxFunctions && len(f.Quick) <= MaxFunctions
	for _, fn := range f.Functions {
		right = right && fn.Program <= Throws && fn.Offset <= math.MaxInt64
	}
	for _, exits := range f.Exits {
		right = right && len(exits) <= MaxExits
	}
	if !right {
		return errors.New("the functions are not those of an allocator")
	}
	return nil
}
