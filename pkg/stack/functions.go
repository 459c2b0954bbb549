package stack

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"
)

// functionTable names the functions of the kernel's image, and those that the kernel made at run time
// (BPF programs, trampolines) before it was read. The functions of modules are in moduleTable. It is
// not modified after it was read, and safe for concurrent use.
type functionTable struct {
	// addrs are sorted. The name of addrs[i] is names[ends[i-1]:ends[i]]: one text in place of
	// a hundred thousand.
	addrs []uint64
	ends  []uint32
	names string
}

// name returns the function that the address is in: the nearest one before it, "" if there is none.
func (t *functionTable) name(addr uint64) string {
	i, found := slices.BinarySearch(t.addrs, addr)
	if !found {
		i--
	}
	if i < 0 {
		return ""
	}
	start := uint32(0)
	if i > 0 {
		start = t.ends[i-1]
	}
	return t.names[start:t.ends[i]]
}

// readFunctionTable reads /proc/kallsyms, where a line is "ffffffff81000000 T _stext" or, for what is
// not part of the image, "ffffffffc0201000 t bpf_prog_6deef7357e7b4530\t[bpf]".
func readFunctionTable(r io.Reader) (*functionTable, error) {
	type symbol struct {
		addr   uint64
		name   string
		global bool
	}
	var all []symbol
	size := 0
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		digits, rest, _ := bytes.Cut(scanner.Bytes(), []byte{' '})
		if len(rest) < 3 {
			continue
		}
		switch rest[0] {
		case 't', 'T', 'w', 'W':
		default:
			continue
		}
		name, owner, owned := bytes.Cut(rest[2:], []byte{'\t'})
		if owned && !bytes.Equal(owner, []byte("[bpf]")) && !bytes.HasPrefix(owner, []byte("[__builtin__")) {
			continue
		}
		addr, ok := parseHex(digits)
		if !ok || addr == 0 || len(name) == 0 {
			continue
		}
		all = append(all, symbol{addr, string(name), rest[0] == 'T'})
		size += len(name)
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	// Of several names for one address the plainest comes last and is taken: labels such as _stext
	// and __entry_text_start begin with underscores.
	underscores := func(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }
	slices.SortStableFunc(all, func(a, b symbol) int {
		if c := cmp.Compare(a.addr, b.addr); c != 0 {
			return c
		}
		if c := cmp.Compare(underscores(b.name), underscores(a.name)); c != 0 {
			return c
		}
		switch {
		case a.global == b.global:
			return 0
		case b.global:
			return -1
		}
		return 1
	})
	t := &functionTable{addrs: make([]uint64, 0, len(all)), ends: make([]uint32, 0, len(all))}
	var names strings.Builder
	names.Grow(size)
	for i, s := range all {
		if i+1 < len(all) && all[i+1].addr == s.addr {
			continue
		}
		names.WriteString(s.name)
		t.addrs = append(t.addrs, s.addr)
		t.ends = append(t.ends, uint32(names.Len()))
	}
	t.names = names.String()
	return t, nil
}
