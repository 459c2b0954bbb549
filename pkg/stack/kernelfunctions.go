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

// functionTable maps addresses to names of kernel functions. It is immutable and safe for concurrent use.
type functionTable struct {
	// addrs are sorted. The name of addrs[i] is names[ends[i-1]:ends[i]]. Thus, one string holds about 100,000 names.
	addrs []uint64
	ends  []uint32
	names string
}

// name returns the nearest function at or before the address if that is less than limit bytes away, or "".
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

// generatedLimit is the assumed maximum size of a function that the kernel created at run time. The function's symbol has no
// size. Newer code without a symbol in the table can follow it.
const generatedLimit = 64 << 10

// generatedOwners are the owners of code that the kernel created at run time. They follow the symbols of BPF programs, and of
// trampolines of ftrace and kprobes.
var generatedOwners = []string{"[bpf]", "[__builtin__"}

// kernelSymbol is a line of /proc/kallsyms: "ffffffff81000000 T _stext" or, outside the image, "ffffffffc0201000 t
// bpf_prog_6deef7357e7b4530\t[bpf]".
type kernelSymbol struct {
	addr  uint64 // 0 if the kernel hides it
	kind  byte
	name  []byte
	owner []byte // in brackets, empty for the image
}

func (s *kernelSymbol) isFunction() bool { return strings.IndexByte("tTwW", s.kind) >= 0 }
func (s *kernelSymbol) ofImage() bool    { return len(s.owner) == 0 }

// isGenerated reports whether the symbol belongs to code that the kernel created at run time.
func (s *kernelSymbol) isGenerated() bool {
	return slices.ContainsFunc(generatedOwners, func(prefix string) bool { return bytes.HasPrefix(s.owner, []byte(prefix)) })
}

func (s *kernelSymbol) ofModule() bool { return !s.ofImage() && !s.isGenerated() }

// eachSymbol calls visit with each line of /proc/kallsyms until visit returns false. The texts are only valid during the call.
func eachSymbol(r io.Reader, visit func(s kernelSymbol) bool) error {
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		digits, rest, _ := bytes.Cut(scanner.Bytes(), []byte{' '})
		if len(rest) < 3 {
			continue
		}
		name, owner, _ := bytes.Cut(rest[2:], []byte{'\t'})
		addr, _ := parseHex(view(digits))
		if !visit(kernelSymbol{addr, rest[0], name, owner}) {
			return nil
		}
	}
	return scanner.Err()
}

var errHidden = errors.New("addresses are hidden (CAP_SYSLOG is needed, see the sysctl kernel.kptr_restrict)")

// readFunctionTable reads the wanted functions from /proc/kallsyms.
func readFunctionTable(r io.Reader, wanted func(*kernelSymbol) bool) (*functionTable, error) {
	type symbol struct {
		addr uint64
		name string
		rank int // of several names for an address, the last with the highest rank is used
	}
	var all []symbol
	size, hidden := 0, false
	err := eachSymbol(r, func(s kernelSymbol) bool {
		switch {
		case !s.isFunction() || len(s.name) == 0 || !wanted(&s):
		case s.addr == 0:
			hidden = true
		default:
			// Labels like _stext and __entry_text_start have more leading underscores. Among equals, a global name is preferred.
			rank := 2 * (len(bytes.TrimLeft(s.name, "_")) - len(s.name))
			if s.kind == 'T' {
				rank++
			}
			all = append(all, symbol{s.addr, string(s.name), rank})
			size += len(s.name)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 && hidden {
		return nil, errHidden
	}
	slices.SortStableFunc(all, func(a, b symbol) int { return cmp.Or(cmp.Compare(a.addr, b.addr), a.rank-b.rank) })
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
