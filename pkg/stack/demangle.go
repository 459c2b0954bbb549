package stack

import (
	"strings"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxMangledLen is the maximum length of a name to demangle. Time and memory increase faster than the name's length: 334
	// bytes can become 3 MB.
	maxMangledLen = 1024
	// maxDemangledPow limits the demangled name to 2^12 bytes.
	maxDemangledPow = 12
)

// The build fails unless MaxNameLen equals 1<<maxDemangledPow.
var _ [0]struct{} = [MaxNameLen - 1<<maxDemangledPow]struct{}{}

// Demangle returns a C++ or Rust symbol in source form, cut at MaxNameLen bytes. It returns a name unchanged if it is not
// mangled, longer than 1,024 bytes, or malformed. It is safe for concurrent use.
func Demangle(name string) (readable string) {
	if len(name) > maxMangledLen || !isMangled(name) {
		return name
	}
	// Names come from the workload's files, and the parser panics on unexpected input.
	defer func() {
		if recover() != nil {
			readable = name
		}
	}()
	s, err := demangle.ToString(name, demangle.MaxLength(maxDemangledPow))
	if err != nil || s == "" {
		return name
	}
	return CutName(s) // the demangler can cut within a rune
}

func isMangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "___Z") || strings.HasPrefix(name, "_GLOBAL_")
}
