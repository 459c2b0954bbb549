package stack

import (
	"strings"
	"unicode/utf8"

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
	if len(s) < MaxNameLen {
		return s
	}
	// The demangler cuts at a byte, which can be amid a rune.
	return trimRune(s[:MaxNameLen])
}

func isMangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "___Z") || strings.HasPrefix(name, "_GLOBAL_")
}

// trimRune cuts an incomplete rune at the end of s.
func trimRune(s string) string {
	for i := 1; i <= min(utf8.UTFMax-1, len(s)); i++ {
		if c := s[len(s)-i]; utf8.RuneStart(c) {
			if !utf8.FullRuneInString(s[len(s)-i:]) {
				return s[:len(s)-i]
			}
			break
		}
	}
	return s
}
