package stack

import (
	"strings"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxMangledLen is the length up to which a name is demangled. Work and memory grow faster
	// than the name does: 334 bytes can become 3 MB.
	maxMangledLen = 1024
	// maxDemangledPow bounds the demangled name: 2^12 bytes.
	maxDemangledPow = 12
)

// The build fails unless MaxNameLen is 1<<maxDemangledPow.
var _ [0]struct{} = [MaxNameLen - 1<<maxDemangledPow]struct{}{}

// Demangle returns a C++ or Rust symbol as a programmer wrote it, at most MaxNameLen bytes of it. A name that is not mangled,
// longer than 1,024 bytes, or malformed is returned unchanged. It is safe for concurrent use.
func Demangle(name string) (readable string) {
	if len(name) > maxMangledLen || !isMangled(name) {
		return name
	}
	// The names come from the workload's files, and the parser panics on unexpected input.
	defer func() {
		if recover() != nil {
			readable = name
		}
	}()
	s, err := demangle.ToString(name, demangle.MaxLength(maxDemangledPow))
	if err != nil || s == "" {
		return name
	}
	return CutName(s) // the demangler cuts at a byte, which can be within a rune
}

func isMangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "___Z") || strings.HasPrefix(name, "_GLOBAL_")
}
