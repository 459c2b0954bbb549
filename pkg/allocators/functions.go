// Package allocators describes the functions of memory allocators in files, as package symbols/parse finds them.
package allocators

import (
	"errors"
	"math"
)

// Program is an index in the map allocator_programs, which holds the gadget's programs. The constant's name says which function
// arguments the program reads.
type Program uint32

// These are the programs.
const (
	SizeFirst Program = iota
	SizeSecond
	SizeThird
	CountSize
	AddressSize
	Address // a function that frees memory
	Returned
	Returning
	Nothing
	Programs = Nothing + 1
	// Throws is for functions like SizeFirst functions that throw an exception if there is no memory.
	Throws = Programs
)

// Function is an allocator's function in a file.
type Function struct {
	Program Program
	Offset  uint64 // offset in the file
}

// Fact is the name of this request in package symbols.
const Fact = "allocator"

// MaxFunctions limits how many functions of a file get a probe.
const MaxFunctions = 64

// MaxExits limits the return instructions of a function.
const MaxExits = 32

// Found is the result for a file.
type Found struct {
	// Functions are the file's allocator functions, the most frequently called first.
	Functions []Function
	// Exits holds the return instructions of throwing functions, by function offset.
	Exits map[uint64][]uint64
	// Quick holds the offsets of functions whose first instruction the kernel emulates for a probe.
	Quick map[uint64]bool
	// TooLarge reports that the file was too large to search.
	TooLarge bool
}

// Check returns an error for impossible results, because hostile files can take over the process that reads them.
func (f *Found) Check() error {
	right := len(f.Functions) <= MaxFunctions && len(f.Exits) <= MaxFunctions && len(f.Quick) <= MaxFunctions
	for _, fn := range f.Functions {
		right = right && fn.Program <= Throws && fn.Offset <= math.MaxInt64
	}
	for _, exits := range f.Exits {
		right = right && len(exits) <= MaxExits
	}
	if !right {
		return errors.New("checking an allocator's functions: there are too many, or one is invalid")
	}
	return nil
}
