package stack

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// KernelAddresses returns the addresses of the running kernel's symbols, in the order of names. It returns an error if the
// kernel hides them or lacks a symbol. It takes tens of milliseconds.
func KernelAddresses(names ...string) ([]uint64, error) {
	return fromKallsyms(func(r io.Reader) ([]uint64, error) { return findSymbols(r, names) })
}

// findSymbols finds symbols of the kernel's image, which precede module symbols.
func findSymbols(r io.Reader, names []string) ([]uint64, error) {
	addrs := make([]uint64, len(names))
	missing := map[string]int{}
	for i, name := range names {
		missing[name] = i
	}
	hidden := false
	err := eachSymbol(r, func(s kernelSymbol) bool {
		if i, ok := missing[string(s.name)]; ok && s.ofImage() {
			hidden, addrs[i] = s.addr == 0, s.addr
			delete(missing, names[i])
		}
		return len(missing) > 0 && !hidden
	})
	switch {
	case err != nil:
		return nil, err
	case hidden:
		return nil, errHidden
	}
	for _, name := range names {
		if _, ok := missing[name]; ok {
			return nil, fmt.Errorf("the kernel has no symbol %s", name)
		}
	}
	return addrs, nil
}

// changed matches the suffixes that a compiler appends to the name of a function that it has modified but not split. Suffixes
// of parts that the compiler moved elsewhere, for example .cold and .part, do not match.
var changed = regexp.MustCompile(`^(\.(isra|constprop|lto_priv|llvm)\.\d+)+$`)

// KernelFunction returns the compiler's name for a function of the running kernel's image: "f" can be "f" or "f.isra.0". It
// returns an error if there is no such name, or several, because callers then use different copies.
func KernelFunction(name string) (string, error) {
	return fromKallsyms(func(r io.Reader) (string, error) { return findFunction(r, name) })
}

func findFunction(r io.Reader, name string) (string, error) {
	var found []string
	err := eachSymbol(r, func(s kernelSymbol) bool {
		rest, ok := bytes.CutPrefix(s.name, []byte(name))
		if ok && s.ofImage() && s.isFunction() && (len(rest) == 0 || changed.Match(rest)) {
			found = append(found, string(s.name))
		}
		return true
	})
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("the kernel has no function %s, or the compiler has inlined it", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("the compiler has split the kernel's function %s into %s", name, strings.Join(found, ", "))
}
