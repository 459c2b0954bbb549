package polyglot

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// verdict is the result of a load's profile.
type verdict struct {
	load loads.Load
	// samples counts hits of the timer. complete counts stacks that reach the program's entry. named counts the stacks with one
	// of the program's three functions by name. chained counts the stacks that also have all its callers by name, in order.
	samples, complete, named, chained int64
	// placed counts the stacks of named in which the function has the language's frame type, a file and a line.
	placed int64
	// at counts the samples by the three functions, found by name or by address.
	at map[string]int64
	// outermost counts the outermost frames of samples that are not complete. unnamed counts threads and innermost frames of
	// samples without one of the three functions.
	outermost, unnamed map[string]int64
}

// judge compares samples with the known facts of a program.
type judge struct {
	load loads.Load
	// entries are the places in files where execution of a program begins.
	entries []span
	// functions are a stripped file's functions, from its unstripped copy.
	functions []span
}

// span is a part of a file, in ELF virtual addresses.
type span struct {
	file, name string
	start, end uint64
}

func (s span) has(f receiver.Frame) bool {
	return f.Mapping != "" && filepath.Base(f.Mapping) == s.file && s.start <= f.Address && f.Address < s.end
}

// entryCode is the maximum distance from an entry point at which a program calls its main function.
const entryCode = 64

// newJudge reads the addresses in the program's own files. executable is the file that runs.
func newJudge(p *loads.Program, executable string) (*judge, error) {
	j := &judge{load: p.Load}
	f, err := elf.Open(executable)
	if err != nil {
		return nil, fmt.Errorf("reading the entry point of %s: %w", executable, err)
	}
	j.entries = append(j.entries, span{filepath.Base(executable), "_start", f.Entry, f.Entry + entryCode})
	if err := f.Close(); err != nil {
		return nil, err
	}
	if p.Unstripped == "" || p.Unstripped == p.Binary {
		return j, nil
	}
	f, err = elf.Open(p.Unstripped)
	if err != nil {
		return nil, fmt.Errorf("reading the functions of %s: %w", p.Unstripped, err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("reading the functions of %s: %w", p.Unstripped, err)
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 {
			j.functions = append(j.functions, span{filepath.Base(p.Binary), s.Name, s.Value, s.Value + s.Size})
		}
	}
	return j, nil
}

// judge judges the samples of one process.
func (j *judge) judge(samples []receiver.Sample) verdict {
	v := verdict{load: j.load, at: map[string]int64{}, outermost: map[string]int64{}, unnamed: map[string]int64{}}
	for _, s := range samples {
		n := s.Total()
		v.samples += n
		stack := userFrames(s.Stack)
		if j.complete(stack) {
			v.complete += n
		} else {
			v.outermost[outermost(stack)] += n
		}
		i := j.named(stack)
		if i < 0 {
			v.unnamed[s.Attributes["thread.name"]+": "+innermost(stack)] += n
		} else {
			v.named += n
			if f := stack[i]; f.Type == j.load.FrameType && f.File != "" && f.Line > 0 {
				v.placed += n
			}
		}
		if j.chained(stack) {
			v.chained += n
		}
		if function := j.function(stack); function != "" {
			v.at[function] += n
		}
	}
	return v
}

// userFrames returns the frames outside the kernel.
func userFrames(stack []receiver.Frame) []receiver.Frame {
	i := slices.IndexFunc(stack, func(f receiver.Frame) bool { return f.Type != "kernel" })
	if i < 0 {
		return nil
	}
	return stack[i:]
}

func innermost(stack []receiver.Frame) string {
	if len(stack) == 0 {
		return "[no user stack]"
	}
	return stack[0].Label()
}

func outermost(stack []receiver.Frame) string {
	if len(stack) == 0 {
		return "[no user stack]"
	}
	return stack[len(stack)-1].Label()
}

// starts are the functions in which a process, a thread or a goroutine starts.
var starts = []string{
	"_start", "__libc_start_main", "__libc_start_call_main", "clone", "__clone", "clone3", "__clone3", "start_thread",
	"runtime.goexit", "runtime.mstart", "runtime.mstart.abi0", "runtime.goexit.abi0", "runtime.rt0_go", "runtime.mcall", "runtime.systemstack",
}

// complete reports whether a stack, leaf first, reaches the entry of the language, of the process or of a thread.
func (j *judge) complete(stack []receiver.Frame) bool {
	if len(stack) == 0 {
		return false
	}
	for _, f := range stack {
		if loads.Is(f.Name, j.load.Entry) || j.functionAt(f) == j.load.Entry {
			return true
		}
	}
	last := stack[len(stack)-1]
	name, _, _ := strings.Cut(last.Name, "@")
	if slices.ContainsFunc(starts, func(start string) bool { return loads.Is(name, start) }) {
		return true
	}
	if slices.ContainsFunc(j.entries, func(e span) bool { return e.has(last) }) {
		return true
	}
	// The start of a thread has no exported name in the C library.
	threads := j.load.FrameType == "jvm" || j.load.FrameType == "v8js"
	return threads && strings.HasPrefix(filepath.Base(last.Mapping), "libc.so.")
}

// functionAt returns the function of a stripped file that a frame is in, or nothing if that is not known.
func (j *judge) functionAt(f receiver.Frame) string {
	for _, s := range j.functions {
		if s.has(f) {
			return s.name
		}
	}
	return ""
}

// named returns the index of a frame with one of the three functions by name, or -1.
func (j *judge) named(stack []receiver.Frame) int {
	return slices.IndexFunc(stack, func(f receiver.Frame) bool { return j.load.Shared(f.Name) != "" })
}

// function returns the one of the three functions that is on the stack, by name or by address.
func (j *judge) function(stack []receiver.Frame) string {
	for _, f := range stack {
		if function := j.load.Shared(f.Name); function != "" {
			return function
		}
		if function := j.load.Shared(j.functionAt(f)); function != "" {
			return function
		}
	}
	return ""
}

// chained reports whether the stack has one of the three functions, followed by its callers out to the entry.
func (j *judge) chained(stack []receiver.Frame) bool {
	i := j.named(stack)
	if i < 0 {
		return false
	}
	chain := j.load.Chain
	for _, f := range stack[i+1:] {
		if len(chain) > 0 && loads.Is(f.Name, chain[len(chain)-1]) {
			chain = chain[:len(chain)-1]
		}
	}
	return len(chain) == 0
}

func percent(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(n) / float64(of)
}

// shares are the found shares of the three functions.
func (v verdict) shares() loads.Counts { return loads.Counts{Load: v.load, At: v.at} }

// off returns the largest difference from the true shares, in percentage points.
func (v verdict) off() float64 { return v.shares().Off() }
