package polyglot

import (
	"debug/elf"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// verdict is what a profile says of one load.
type verdict struct {
	load loads.Load
	// samples counts hits of the timer. Of those, complete have a stack that reaches the program's entry, named have
	// one of the program's three functions by name, and chained all of its callers by name, too, in order.
	samples, complete, named, chained int64
	// placed are those of named in which that function has the type of the language's frames, a file and a line.
	placed int64
	// at is how many samples each of the three functions has among its callees, by name or by address.
	at map[string]int64
	// outermost has, for samples that are not complete, how often each outermost frame was seen, and unnamed, for those without one of the
	// three functions, how often each thread was met with each innermost frame.
	outermost, unnamed map[string]int64
}

// judge weighs samples against what is known of a program.
type judge struct {
	load loads.Load
	// entries are the places in files where execution begins: the start of a program.
	entries []span
	// functions are those of a stripped file, as its unstripped copy has them.
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

// entryCode is how far from its entry point a program can be found calling its main function.
const entryCode = 64

// newJudge reads what addresses mean in the program's own files. executable is the file that runs.
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

// judge weighs the samples of one process.
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

// userFrames are the frames that are not the kernel's.
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

// starts are the functions that a process, a thread or a goroutine starts in.
var starts = []string{
	"_start", "__libc_start_main", "__libc_start_call_main", "clone", "__clone", "clone3", "__clone3", "start_thread",
	"runtime.goexit", "runtime.mstart", "runtime.mstart.abi0", "runtime.goexit.abi0", "runtime.rt0_go", "runtime.mcall", "runtime.systemstack",
}

// complete says whether a stack, leaf first, reaches the entry: that of the language, or that of the process or of a
// thread.
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

// functionAt is the function of a stripped file that a frame is in, empty if that is not known.
func (j *judge) functionAt(f receiver.Frame) string {
	for _, s := range j.functions {
		if s.has(f) {
			return s.name
		}
	}
	return ""
}

// shared says which of the three functions a name means.
func (j *judge) shared(name string) string {
	for _, s := range j.load.Shares {
		if loads.Is(name, s.Function) {
			return s.Function
		}
	}
	return ""
}

// named is which frame is one of the three functions by name, -1 if none is.
func (j *judge) named(stack []receiver.Frame) int {
	return slices.IndexFunc(stack, func(f receiver.Frame) bool { return j.shared(f.Name) != "" })
}

// function is the one of the three that the stack goes through, by name or by address.
func (j *judge) function(stack []receiver.Frame) string {
	for _, f := range stack {
		if function := j.shared(f.Name); function != "" {
			return function
		}
		if function := j.shared(j.functionAt(f)); function != "" {
			return function
		}
	}
	return ""
}

// chained says whether the stack has one of the three functions and after it its callers out to the entry.
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

// inFunctions is how many samples have one of the three functions.
func (v verdict) inFunctions() int64 {
	sum := int64(0)
	for _, n := range v.at {
		sum += n
	}
	return sum
}

// share is a function's part of the samples in the three, in percent.
func (v verdict) share(function string) float64 { return percent(v.at[function], v.inFunctions()) }

// off is how many points the share that is furthest from the truth is off.
func (v verdict) off() float64 {
	worst := 0.0
	for _, s := range v.load.Shares {
		worst = math.Max(worst, math.Abs(v.share(s.Function)-s.Percent))
	}
	return worst
}

// shares is the found shares as text, or a dash where none of the functions was found.
func (v verdict) shares() string {
	if v.inFunctions() == 0 {
		return "-"
	}
	var parts []string
	for _, s := range v.load.Shares {
		parts = append(parts, fmt.Sprintf("%.1f", v.share(s.Function)))
	}
	return strings.Join(parts, " / ")
}
