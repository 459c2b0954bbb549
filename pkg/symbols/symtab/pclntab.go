package symtab

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// GoTable holds a Go program's functions. golang.org/s/go12symtab and src/runtime/symtab.go of each release describe the
// format. It omits data that only the garbage collector and the unwinder use.
//
// Programs have up to a hundred thousand functions, but only some hundreds are requested. So the table holds the starts of all
// functions. It holds names, files and lines only for the functions in Loaded. A GoTable is immutable.
type GoTable struct {
	GoPlace
	Text   uint64   // base address of starts
	Start  []uint32 // one entry more than there are functions, because each function extends to the next start
	Loaded map[uint32]*GoFunc
	Size   int64 // of Loaded, in bytes
}

// GoPlace holds the offsets of the table's parts in the file.
type GoPlace struct {
	GoHeader
	Offset, End uint64
	Text        uint64 // base address of starts, as findModule found it; 0: see the header
	// Calls and CallsSize are the offset and the maximum size of the inlining trees, or 0 if unknown.
	Calls, CallsSize uint64
}

// GoFunc is a function. A nil GoFunc means that the function cannot be read.
type GoFunc struct {
	Name                string
	Start               int // the first line, 0 if unknown
	File, Line, Inlined GoPairs
	Files               map[int32]string // by the values of the table File
	Calls               []GoCall         // inlined calls
	NoCalls             bool             // inlined calls are unknown
}

// GoCall is an inlined call.
type GoCall struct {
	At    uint32 // an address at the call, relative to the function's start
	Start int    // the first line of the inlined function, 0 if unknown
	Name  string
}

// goVersion is a layout of the table.
type goVersion int

// These are the layouts, by the release of Go that introduced them.
const (
	Go116 goVersion = iota
	Go118
	Go120
)

// GoHeader is the header of a table. Its last five fields are offsets of the table's parts from its start.
type GoHeader struct {
	Version                                     goVersion
	Quantum, Pointer                            uint64
	Functions                                   uint64
	TextStart                                   uint64
	FuncNames, Units, FileNames, Pctab, Program uint64
}

// GoPairs is a table of values by address, relative to a function's start. B contains pairs of a value difference and an
// address difference, as the Go toolchain writes them. Resume contains states at which decoding can begin. So a lookup never
// decodes more than ResumeSteps pairs.
type GoPairs struct {
	B      []byte
	Resume []GoResume // after every ResumeSteps pairs
}

// GoResume is the state between two pairs.
type GoResume struct {
	at    uint32 // offset in the table
	Pc    uint32 // the end of the last pair
	Value int32  // value of the last pair
}

// ResumeSteps is the number of pairs between two GoResumes.
const ResumeSteps = 64

const maxSteps = 1 << 17 // pairs of a table

// GoStart is the state before the first pair.
var GoStart = GoResume{Value: -1}

// GoValues calls each for the pairs of a table after the state from, until each returns false. now.Value is valid for addresses
// below now.Pc. GoValues returns the number of bytes read, and false if the table has no end.
func GoValues(b []byte, quantum uint32, from GoResume, each func(now GoResume) bool) (int, bool) {
	now := from
	rest := b[from.at:]
	for range maxSteps {
		delta, n := binary.Uvarint(rest[:min(len(rest), 5)])
		if n <= 0 {
			return 0, false
		}
		rest = rest[n:]
		if delta == 0 && now.at > 0 {
			return len(b) - len(rest), true
		}
		distance, n := binary.Uvarint(rest[:min(len(rest), 5)])
		if n <= 0 {
			return 0, false
		}
		rest = rest[n:]
		now.Value += int32(uint32(delta)>>1) ^ -int32(uint32(delta)&1)
		now.Pc += uint32(distance) * quantum
		now.at = uint32(len(b) - len(rest))
		if !each(now) {
			break
		}
	}
	return len(b) - len(rest), true
}

// From returns the state at which decoding must begin to find the value for an address.
func (p *GoPairs) From(pc uint32) GoResume {
	if i := sort.Search(len(p.Resume), func(i int) bool { return p.Resume[i].Pc > pc }); i > 0 {
		return p.Resume[i-1]
	}
	return GoStart
}

// Value returns the value for an address relative to the function's start, or -1.
func (t *GoTable) Value(p *GoPairs, pc uint32) int32 {
	found, steps := int32(-1), 0
	GoValues(p.B, uint32(t.Quantum), p.From(pc), func(now GoResume) bool {
		if pc < now.Pc {
			found = now.Value
			return false
		}
		steps++
		return steps < ResumeSteps // more steps are necessary only if addresses decrease in a damaged table
	})
	return found
}

func (p *GoPairs) bytes() int { return cap(p.B) + 12*cap(p.Resume) }

// maxDepth limits the nesting of inlined calls.
const maxDepth = 64

// Function returns the number of the function at an address, or false.
func (t *GoTable) Function(addr uint64) (uint32, bool) {
	i, _ := lastFrom(addr, t.Text, len(t.Start), func(i int) uint32 { return t.Start[i] })
	return uint32(i), i >= 0 && i < len(t.Start)-1
}

// lookup returns the function at an address. The State is Named, Outside, or Pending if the function was not loaded.
func (t *GoTable) lookup(addr uint64) (Symbol, State) {
	i, ok := t.Function(addr)
	if !ok {
		return Symbol{}, Outside
	}
	f, ok := t.Loaded[i]
	switch {
	case !ok:
		return Symbol{}, Pending
	case f == nil || f.Name == "":
		return Symbol{}, Outside
	}
	pc := uint32(addr-t.Text) - t.Start[i]
	var chain []Symbol
	call := t.Value(&f.Inlined, pc)
	if call >= 0 && f.NoCalls {
		// The line in the function itself is unknown.
		return Symbol{Name: f.Name, File: f.Files[t.Value(&f.File, 0)], StartLine: f.Start, Source: SourcePclntab}, Named
	}
	for depth := 0; call >= 0 && depth < maxDepth && int(call) < len(f.Calls); depth++ {
		c := f.Calls[call]
		s := t.position(f, pc)
		s.Name, s.StartLine = c.Name, c.Start
		chain = append(chain, s)
		pc = c.At
		call = t.Value(&f.Inlined, pc)
	}
	s := t.position(f, pc)
	s.Name, s.StartLine = f.Name, f.Start
	if len(chain) > 0 {
		chain = append(chain, s)
		s = chain[0]
		s.Callers = chain[1:]
	}
	return s, Named
}

// Covers reports whether an address is in a function.
func (t *GoTable) Covers(addr uint64) bool {
	return addr >= t.Text && addr-t.Text < uint64(t.Start[len(t.Start)-1])
}

// position returns the file and line of an address relative to the function's start.
func (t *GoTable) position(f *GoFunc, pc uint32) Symbol {
	s := Symbol{File: f.Files[t.Value(&f.File, pc)], Source: SourcePclntab}
	if line := t.Value(&f.Line, pc); line > 0 && s.File != "" {
		s.Line = int(line)
	}
	return s
}

func (t *GoTable) bytes() int64 { return 512 + 4*int64(cap(t.Start)) + t.Size }

// Missing returns the functions at addrs that are not loaded.
func (t *GoTable) Missing(addrs []uint64) []GoRange {
	var wanted []GoRange
	for _, addr := range addrs {
		if i, ok := t.Function(addr); ok {
			if _, ok := t.Loaded[i]; !ok {
				wanted = append(wanted, GoRange{i, t.Start[i+1] - t.Start[i]})
			}
		}
	}
	slices.SortFunc(wanted, func(a, b GoRange) int { return cmp.Compare(a.Number, b.Number) })
	return slices.Compact(wanted)
}

// Bytes returns the memory of a function, without shared strings.
func (f *GoFunc) Bytes() int64 {
	const entry = 48 // of the map of functions
	if f == nil {
		return entry
	}
	n := entry + 232 + int64(len(f.Name)+f.File.bytes()+f.Line.bytes()+f.Inlined.bytes()) + 32*int64(cap(f.Calls)) + 48*int64(len(f.Files))
	for _, path := range f.Files {
		n += int64(len(path))
	}
	for i := range f.Calls {
		n += int64(len(f.Calls[i].Name))
	}
	return n
}
