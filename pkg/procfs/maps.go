package procfs

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
)

// Mapping is a line of /proc/PID/maps.
type Mapping struct {
	Start, End, Offset uint64
	Perms              string // in the kernel's form: "r-xp"
	Major, Minor       uint32 // numbers of the device
	Inode              uint64
	Path               string // or a name in brackets; empty for anonymous memory
}

// Executes reports whether the mapping is executable.
func (m *Mapping) Executes() bool { return m.Perms[2] == 'x' }

// Mappings parses the text of /proc/PID/maps, which is sorted by address. It skips invalid lines.
func Mappings(text []byte) iter.Seq[Mapping] {
	return func(yield func(Mapping) bool) {
		for line := range bytes.Lines(text) {
			if m, ok := ParseMapping(line); ok && !yield(m) {
				return
			}
		}
	}
}

// ParseMapping parses a line of /proc/PID/maps: "55d0c0a4e000-55d0c0b2f000 r-xp 0002f000 fd:01 1234   /usr/bin/bash".
func ParseMapping(text []byte) (m Mapping, ok bool) {
	rest := string(bytes.TrimSuffix(text, []byte("\n")))
	var fields [5]string
	for i := range fields {
		fields[i], rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
	}
	m.Perms, m.Path = fields[1], strings.TrimLeft(rest, " ")
	from, to, _ := strings.Cut(fields[0], "-")
	major, minor, _ := strings.Cut(fields[3], ":")
	var ma, mi uint64
	for _, n := range []struct {
		dst  *uint64
		text string
		base int
		bits int
	}{{&m.Start, from, 16, 64}, {&m.End, to, 16, 64}, {&m.Offset, fields[2], 16, 64}, {&m.Inode, fields[4], 10, 64}, {&ma, major, 16, 32}, {&mi, minor, 16, 32}} {
		v, err := strconv.ParseUint(n.text, n.base, n.bits)
		if err != nil {
			return m, false
		}
		*n.dst = v
	}
	m.Major, m.Minor = uint32(ma), uint32(mi)
	return m, len(m.Perms) == 4 && m.Start < m.End && m.Start < 1<<63
}

// maxVDSO is larger than the vdso of any kernel.
const maxVDSO = 1 << 20

// VDSO returns the ELF file that the kernel maps into this process. It is the same for all processes.
func VDSO() ([]byte, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for m := range Mappings(maps) {
		if m.Path != "[vdso]" || m.End-m.Start > maxVDSO {
			continue
		}
		memory, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		defer memory.Close()
		code := make([]byte, m.End-m.Start)
		if _, err := memory.ReadAt(code, int64(m.Start)); err != nil {
			return nil, err
		}
		return code, nil
	}
	return nil, fmt.Errorf("the kernel has no vdso: %w", os.ErrNotExist)
}
