package stack

import (
	"fmt"
	"io"
)

// KernelAddresses returns the addresses of symbols of the running kernel, in the order of their names. It is an error if the
// kernel hides them or has no such symbol. It takes tens of milliseconds.
func KernelAddresses(names ...string) (addrs []uint64, err error) {
	err = readFile("/proc/kallsyms", func(r io.Reader) error {
		addrs, err = findSymbols(r, names)
		return err
	})
	return addrs, err
}

// findSymbols looks for symbols of the image, which come before those of modules.
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
			return nil, fmt.Errorf("no symbol %s", name)
		}
	}
	return addrs, nil
}
