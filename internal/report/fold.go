package report

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// interpreted are the types of frames of interpreters and of compilers at run time.
var interpreted = []string{"beam", "cpython", "dotnet", "jvm", "perl", "php", "ruby", "v8js"}

// Interpreter returns the frames of a stack that are an interpreter's own. These are functions of CPython or Node.js that execute a
// user's function, V8's trampolines, and the JVM's stubs. Their time counts for the function that they execute. It is nil
// without such frames, and without such a function in the stack, because a garbage collector has its own threads. All views of
// a profile use this function.
func Interpreter(stack []receiver.Frame) []bool {
	if !Interpreted(stack) {
		return nil
	}
	var own []bool
	for i, f := range stack {
		if stub(f) || f.Type == "native" && (IsInterpreter(f.Mapping) || f.Mapping == "" && f.Name == "") {
			if own == nil {
				own = make([]bool, len(stack))
			}
			own[i] = true
		}
	}
	return own
}

// Interpreted reports whether a stack has a function that an interpreter executes, or that was compiled at run time.
func Interpreted(stack []receiver.Frame) bool {
	return slices.ContainsFunc(stack, func(f receiver.Frame) bool { return slices.Contains(interpreted, f.Type) && !stub(f) })
}

// Fold returns the samples without the frames of Interpreter. Samples that lose frames are copied; those that shared a stack share its copy.
func Fold(samples []receiver.Sample) []receiver.Sample {
	samples = slices.Clone(samples)
	known := map[receiver.Stack][]receiver.Frame{}
	for i, s := range samples {
		k := receiver.StackOf(s.Stack)
		if _, ok := known[k]; !ok {
			known[k] = folded(s.Stack)
		}
		samples[i].Stack = known[k]
	}
	return samples
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

// stub reports whether a frame of an interpreted type is generated code of the machine itself. Methods of Java have a class before
// their name, blobs of the JVM have none.
func stub(f receiver.Frame) bool {
	switch f.Type {
	case "v8js":
		return strings.HasPrefix(f.Name, "V8::")
	case "jvm":
		return f.File == "" && f.Line == 0 && !strings.Contains(f.Name, ".")
	}
	return false
}

// interpreters are the names of files of interpreters and of their libraries, with versions.
var interpreters = regexp.MustCompile(`^(lib)?(python|ruby|php(-fpm|-cgi)?|perl|node(js)?|java|jvm|jli|v8|dotnet|coreclr|clrjit|hostfxr|hostpolicy|beam)[-0-9.]*(smp|so[0-9.]*)?$`)

// IsInterpreter reports whether a file is that of an interpreter, by its name.
func IsInterpreter(mapping string) bool { return interpreters.MatchString(path.Base(mapping)) }
