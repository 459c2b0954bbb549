package report

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// interpreted are the frame types of interpreters and just-in-time compilers.
var interpreted = []string{"beam", "cpython", "dotnet", "jvm", "perl", "php", "ruby", "v8js"}

// Interpreter returns the frames of a stack that are an interpreter's own. These are functions of CPython or Node.js that execute
// a user's function, and code that V8 and the JVM generate for themselves. Their time counts for the function that they execute.
// It returns nil without such frames. It also returns nil without such a function, as in a garbage collector's threads. All views
// of a profile use this function.
func Interpreter(stack []receiver.Frame) []bool {
	if !Interpreted(stack) {
		return nil
	}
	var own []bool
	for i, f := range stack {
		if ofVM(f) || f.Type == "native" && (IsInterpreter(f.Mapping) || f.Mapping == "" && f.Name == "") {
			if own == nil {
				own = make([]bool, len(stack))
			}
			own[i] = true
		}
	}
	return own
}

// Interpreted reports whether a stack contains a function that an interpreter executes or a JIT compiler has compiled.
func Interpreted(stack []receiver.Frame) bool {
	return slices.ContainsFunc(stack, func(f receiver.Frame) bool { return slices.Contains(interpreted, f.Type) && !ofVM(f) })
}

// Fold returns the samples without the frames of Interpreter. If no sample has such frames, it returns samples itself, so callers
// must not change the result. Otherwise it returns a copy. Samples that shared a stack share its copy.
func Fold(samples []receiver.Sample) []receiver.Sample {
	out := samples
	known := map[receiver.Stack][]receiver.Frame{}
	for i, s := range samples {
		k := receiver.StackOf(s.Stack)
		stack, ok := known[k]
		if !ok {
			stack = folded(s.Stack)
			known[k] = stack
		}
		if len(stack) == len(s.Stack) {
			continue
		}
		if &out[0] == &samples[0] { // most profiles have no such frames, and need no copy
			out = slices.Clone(samples)
		}
		out[i].Stack = stack
	}
	return out
}

func folded(stack []receiver.Frame) []receiver.Frame {
	own := Interpreter(stack)
	if own == nil {
		return stack
	}
	kept := make([]receiver.Frame, 0, len(stack))
	for i, f := range stack {
		if !own[i] {
			kept = append(kept, f)
		}
	}
	return kept
}

// ofVM reports whether a frame of an interpreted type is code that the virtual machine generated for itself. A Java method's name
// begins with its class. The name of a JVM blob does not.
func ofVM(f receiver.Frame) bool {
	switch f.Type {
	case "v8js":
		return strings.HasPrefix(f.Name, "V8::")
	case "jvm":
		return f.File == "" && f.Line == 0 && !strings.Contains(f.Name, ".")
	}
	return false
}

// interpreters matches the file names of interpreters and their libraries, including versions.
var interpreters = regexp.MustCompile(`^(lib)?(python|ruby|php(-fpm|-cgi)?|perl|node(js)?|java|jvm|jli|v8|dotnet|coreclr|clrjit|hostfxr|hostpolicy|beam)[-0-9.]*(smp|so[0-9.]*)?$`)

// IsInterpreter reports whether a file belongs to an interpreter, judging by its name.
func IsInterpreter(mapping string) bool { return interpreters.MatchString(path.Base(mapping)) }
