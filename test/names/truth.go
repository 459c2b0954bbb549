package names

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// function is one of a file, as nm lists it.
type function struct {
	start, end uint64
	name       string
}

// symbols is what nm knows of a file.
type symbols struct{ functions []function }

// readSymbols asks nm for the functions of a file that have a size, from both of its tables.
func readSymbols(ctx context.Context, path string) (*symbols, error) {
	s := &symbols{}
	for _, table := range []string{"--defined-only", "--dynamic"} {
		out, err := exec.CommandContext(ctx, "nm", "-S", "--defined-only", table, path).Output()
		if err != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("asking nm for %s: %w", path, err)
		}
		scanner := bufio.NewScanner(bytes.NewReader(out))
		for scanner.Scan() { // value size type name
			fields := strings.Fields(scanner.Text())
			if len(fields) < 4 || !strings.ContainsAny(fields[2], "TtWwi") {
				continue
			}
			start, err1 := strconv.ParseUint(fields[0], 16, 64)
			size, err2 := strconv.ParseUint(fields[1], 16, 64)
			if err1 != nil || err2 != nil || size == 0 {
				continue
			}
			s.functions = append(s.functions, function{start, start + size, fields[3]})
		}
	}
	slices.SortFunc(s.functions, func(a, b function) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	return s, nil
}

// at returns all functions that cover an address.
func (s *symbols) at(addr uint64) (names []string) {
	for _, f := range s.functions {
		if f.start > addr {
			break
		}
		if addr < f.end {
			names = append(names, plain(f.name))
		}
	}
	return names
}

// plain is a name without its version.
func plain(name string) string {
	name, _, _ = strings.Cut(name, "@")
	return name
}

// goNames asks Go's own tool for the functions at addresses of a Go program.
func goNames(ctx context.Context, path string, addrs []uint64) (map[uint64]string, error) {
	var input strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&input, "%#x\n", a)
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "addr2line", path)
	cmd.Stdin = strings.NewReader(input.String())
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool addr2line %s: %w", path, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n") // two per address: function, file:line
	if len(lines) != 2*len(addrs) {
		return nil, fmt.Errorf("go tool addr2line %s: %d lines for %d addresses", path, len(lines), len(addrs))
	}
	names := map[uint64]string{}
	for i, a := range addrs {
		names[a] = lines[2*i]
	}
	return names, nil
}
