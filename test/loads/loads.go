// Package loads has programs with known profiles. In each of a dozen languages, a program spends 60 % of its CPU time in one
// function, 30 % in a second and 10 % in a third, all with the same callers. There are also a distribution's programs at work.
//
// A Load describes a program and the profile that it must have. Build builds it, and Program.Start runs it:
//
//	load, err := loads.Find("python")
//	program, err := load.Build(ctx, dir)
//	process, err := program.Start(ctx, loads.DefaultLimit)
//	defer process.Stop()
//
// A program runs until its owner stops it, but at most for the CPU time given at its start. Programs of one folder can run at the
// same time. The executable has the load's name if the language allows that.
package loads

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Share is a function's part of the CPU time below Load.Caller.
type Share struct {
	Function string
	Percent  float64
}

// Naming says where a profiler can find the names of a program's own functions.
type Naming string

// The ways to names.
const (
	// SymbolTable: the file with the functions has a .symtab.
	SymbolTable Naming = "symbol table"
	// DynamicSymbols: only the exported functions of libraries have names.
	DynamicSymbols Naming = "dynamic symbols"
	// GoTable: the table of functions that every Go program has.
	GoTable Naming = "Go's function table"
	// Interpreter: the memory of the interpreter or virtual machine contains the names.
	Interpreter Naming = "interpreter"
	// Stripped: the file contains no names, but a debug file or a symbol server does.
	Stripped Naming = "stripped"
)

// Load is a program and the known facts of its profile.
type Load struct {
	// Name is unique: letters, digits and dashes, at most 15 bytes.
	Name string
	// The field What describes the program to a person.
	What string
	// Packages are the Debian packages that Build and Start need.
	Packages []string
	// Naming says where the names are.
	Naming Naming
	// FrameType is OpenTelemetry's type of its functions' frames (profile.frame.type).
	FrameType string
	// Entry is the outermost function of the language. Chain has the callers from there to the three functions, outermost first. It
	// is empty if no function is known. The last function of Chain calls all of Shares.
	Entry string
	Chain []string
	// Shares are the true parts of the CPU time below the last function of Chain. They are empty for a program at work.
	Shares []Share

	build func(*builder) error
}

// Known reports whether the shares and callers of the program's functions are known.
func (l Load) Known() bool { return len(l.Shares) > 0 }

// Caller is the function that calls the functions of Shares.
func (l Load) Caller() string { return l.Chain[len(l.Chain)-1] }

// Shared returns the function of Shares that a profiler's name of a function means, or nothing.
func (l Load) Shared(name string) string {
	for _, s := range l.Shares {
		if Is(name, s.Function) {
			return s.Function
		}
	}
	return ""
}

// Counts are a profile's samples in the functions of Load.Shares.
type Counts struct {
	Load Load
	At   map[string]int64 // by function
}

// Total is the number of samples in all of the functions.
func (c Counts) Total() (n int64) {
	for _, at := range c.At {
		n += at
	}
	return n
}

// Percent is a function's part of the samples in all of the functions.
func (c Counts) Percent(function string) float64 {
	return 100 * float64(c.At[function]) / float64(max(c.Total(), 1))
}

// Off returns the largest difference from the true shares, in percentage points.
func (c Counts) Off() float64 {
	worst := 0.0
	for _, s := range c.Load.Shares {
		worst = math.Max(worst, math.Abs(c.Percent(s.Function)-s.Percent))
	}
	return worst
}

// String returns the percentages for a cell of a table. It is a dash if there are no samples.
func (c Counts) String() string {
	if c.Total() == 0 {
		return "-"
	}
	var parts []string
	for _, s := range c.Load.Shares {
		parts = append(parts, fmt.Sprintf("%.1f", c.Percent(s.Function)))
	}
	return strings.Join(parts, " / ")
}

// All returns all loads except those of Apart, in a fixed order.
func All() []Load { return slices.Clone(catalog) }

// Known returns the loads of All with known shares.
func Known() []Load { return slices.DeleteFunc(All(), func(l Load) bool { return !l.Known() }) }

// Apart returns further loads with known shares, in a fixed order. Their runtimes are not in the distribution. Building one
// downloads some hundred MB, takes a minute or two, and needs root.
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
	return Load{}, fmt.Errorf("no load is named %q; the loads are %s", name, strings.Join(names, ", "))
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

// Is reports whether a profiler's name of a function means that function of a source file. The name can contain parameters, a
// path of packages, classes or modules, Rust's hash, and Erlang's number of parameters.
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
