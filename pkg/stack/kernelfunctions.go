package stack

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
)

// functionTable names functions of the kernel by their addresses. It is not modified after it was read, and
// safe for concurrent use. The functions of modules are in moduleTable.
type functionTable struct {
	// addrs are sorted. The name of addrs[i] is names[ends[i-1]:ends[i]]: one text in place of
	// a hundred thousand.
	addrs []uint64
	ends  []uint32
	names string
}

// name returns the function that the address is in: the nearest one before it, if that is less than limit
// bytes away, or else "".
func (t *functionTable) name(addr, limit uint64) string {
	i, found := slices.BinarySearch(t.addrs, addr)
	if !found {
		i--
	}
	if i < 0 || addr-t.addrs[i] >= limit {
		return ""
	}
	start := uint32(0)
	if i > 0 {
		start = t.ends[i-1]
	}
	return t.names[start:t.ends[i]]
}

// generatedLimit is the most bytes that a function is taken to have which the kernel made at run time. Its symbol has
// no size, and code that comes after it may have been made later, without a symbol in the table.
const generatedLimit = 64 << 10

// generatedOwners stand in brackets after the symbols of code that the kernel made at run time: BPF
// programs, and the trampolines of ftrace and kprobes.
var generatedOwners = []string{"[bpf]", "[__builtin__"}

// ofImage and generated choose symbols by their owner, which is what stands in brackets after the name: of the
// image's own symbols, and of code that the kernel made at run time.
func ofImage(owner []byte) bool { return len(owner) == 0 }

func generated(owner []byte) bool {
	return slices.ContainsFunc(generatedOwners, func(prefix string) bool { return bytes.HasPrefix(owner, []byte(prefix)) })
}

var errHidden = errors.New("addresses are hidden (CAP_SYSLOG is needed, see the sysctl kernel.kptr_restrict)")

// readFunctionTable reads the functions of some owners from /proc/kallsyms, where a line is
// "ffffffff81000000 T _stext" or, for what is not part of the image,
// "ffffffffc0201000 t bpf_prog_6deef7357e7b4530\t[bpf]".
func readFunctionTable(r io.Reader, owned func(owner []byte) bool) (*functionTable, error) {
	type symbol struct {
		addr   uint64
		name   string
		global bool
	}
	var all []symbol
	size, hidden := 0, false
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
		name, owner, _ := bytes.Cut(rest[2:], []byte{'\t'})
		if len(name) == 0 || !owned(owner) {
			continue
		}
		addr, ok := parseHex(digits)
		if !ok || addr == 0 {
			hidden = ok
			continue
		}
		all = append(all, symbol{addr, string(name), rest[0] == 'T'})
		size += len(name)
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 && hidden {
		return nil, errHidden
	}
	// Of several names for one address the last in this order is taken: one with few underscores in front,
	// because labels such as _stext and __entry_text_start have them, and of those a global one.
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
