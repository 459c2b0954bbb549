// Package loads has programs whose profile is known beforehand: in each of a dozen languages one that spends 60 % of
// its CPU time in one function, 30 % in a second and 10 % in a third, all reached through the same callers; and
// programs as a distribution ships them, at work.
//
// A Load says what a program is and what its profile has to show, Build makes it, Program.Start runs it:
//
//	load, err := loads.Find("python")
//	program, err := load.Build(ctx, dir)
//	process, err := program.Start(ctx, loads.DefaultLimit)
//	defer process.Stop()
//
// A program runs until its owner stops it, and no longer than the CPU time it was started with. Programs of one
// folder can run at the same time; the name of the load is the name of the program's executable where the language
// allows that.
package loads

import (
	"fmt"
	"slices"
	"strings"
)

// Share is a function's part of the CPU time that is spent below Load.Caller.
type Share struct {
	Function string
	Percent  float64
}

// Naming says where a profiler can find the names of a program's own functions.
type Naming string

// The ways to names.
const (
	// SymbolTable: a .symtab in the file with the functions.
	SymbolTable Naming = "symbol table"
	// DynamicSymbols: only the exported functions of libraries have names.
	DynamicSymbols Naming = "dynamic symbols"
	// GoTable: the table of functions that every Go program has.
	GoTable Naming = "Go's function table"
	// Interpreter: the memory of the interpreter or virtual machine.
	Interpreter Naming = "interpreter"
	// Stripped: nothing in the file; a debug file or a server of symbols elsewhere.
	Stripped Naming = "stripped"
)

// Load is a program and what is known of its profile.
type Load struct {
	// Name is unique: letters, digits and dashes, at most 15 bytes.
	Name string
	// What tells a person what runs.
	What string
	// Packages are the Debian packages that Build and Start need.
	Packages []string
	// Naming says where names come from.
	Naming Naming
	// FrameType is what OpenTelemetry calls the frames of its functions (profile.frame.type).
	FrameType string
	// Entry is the outermost function of the language, and Chain the callers from there to the three functions,
	// outermost first; empty if no function is known. The last one of Chain calls all of Shares.
	Entry string
	Chain []string
	// Shares are the true parts of the CPU time below the last function of Chain, empty for a program at work.
	Shares []Share
	// Gone says that the CPU time is spent in processes that are gone within a second or so.
	Gone bool

	build func(*builder) error
}

// Known says whether the shares and callers of the program's functions are known.
func (l Load) Known() bool { return len(l.Shares) > 0 }

// Caller is the function that calls those of Shares.
func (l Load) Caller() string { return l.Chain[len(l.Chain)-1] }

// All returns all loads but those of Apart, in a fixed order.
func All() []Load { return slices.Clone(catalog) }

// Known returns those of All whose shares are known.
func Known() []Load { return slices.DeleteFunc(All(), func(l Load) bool { return !l.Known() }) }

// Apart returns further loads whose shares are known, in a fixed order. Their runtimes come from elsewhere than the
// distribution: to build one fetches some hundred MB, takes a minute or two, and needs root.
func Apart() []Load { return slices.Clone(apart) }

// Find returns the load of that name.
func Find(name string) (Load, error) {
	var names []string
	for _, l := range slices.Concat(catalog, apart) {
		if l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	return Load{}, fmt.Errorf("no load is called %q: there are %s", name, strings.Join(names, ", "))
}

// Packages returns the Debian packages that the loads need, sorted, each once.
func Packages(loads []Load) []string {
	var packages []string
	for _, l := range loads {
		packages = append(packages, l.Packages...)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// Is says whether a profiler's name of a function means that function of a source file. The name may have
// parameters, a path of packages, classes or modules, Rust's hash, and Erlang's number of parameters.
func Is(name, function string) bool {
	if name == "" || function == "" {
		return false
	}
	if name == function {
		return true
	}
	if i := strings.LastIndex(name, "::h"); i > 0 && len(name)-i == len("::h")+16 {
		name = name[:i]
	}
	if i := strings.IndexByte(name, '('); i > 0 {
		name = name[:i]
	}
	if i := strings.LastIndexByte(name, '/'); i > 0 && strings.Trim(name[i+1:], "0123456789") == "" {
		name = name[:i]
	}
	name = strings.TrimRight(name, " ")
	return strings.HasSuffix(name, function) && (len(name) == len(function) || strings.IndexByte(".:# /$\\", name[len(name)-len(function)-1]) >= 0)
}
