package stack

import (
	"bufio"
	"bytes"
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
	scanner := bufio.NewScanner(r)
	for len(missing) > 0 && scanner.Scan() {
		digits, rest, _ := bytes.Cut(scanner.Bytes(), []byte{' '})
		if len(rest) < 3 {
			continue
		}
		i, ok := missing[string(rest[2:])]
		if !ok {
			continue
		}
		addr, ok := parseHex(digits)
		if !ok || addr == 0 {
			return nil, errHidden
		}
		addrs[i] = addr
		delete(missing, names[i])
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := missing[name]; ok {
			return nil, fmt.Errorf("no symbol %s", name)
		}
	}
	return addrs, nil
}
