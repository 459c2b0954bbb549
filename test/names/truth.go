package names

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// function is a function of a file in nm's list.
type function struct {
	start, end uint64
	name       string
}

// symbols holds a file's names according to other tools.
type symbols struct {
	functions []function // by address
	longest   uint64     // of them
	complete  bool       // the file has its symbol table
}

// readSymbols gets functions with a size from nm, which reads both symbol tables and the debug file. It gets the PLT stubs from
// objdump.
func readSymbols(ctx context.Context, path string) (*symbols, error) {
	if path == "[vdso]" {
		copied, err := copyVDSO()
		if err != nil {
			return nil, err
		}
		defer os.Remove(copied)
		path = copied
	}
	s := &symbols{functions: stubs(ctx, path)}
	for _, table := range [][]string{{path}, {"--dynamic", path}, {debugFile(ctx, path)}} {
		out, err := exec.CommandContext(ctx, "nm", append([]string{"-S", "--defined-only"}, table...)...).Output()
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
			s.complete = s.complete || table[0] != "--dynamic"
		}
	}
	s.sort()
	for i := range s.functions { // the stub of an ifunc has its resolver's address as a name
		f := &s.functions[i]
		text, ok := strings.CutPrefix(f.name, "*ABS*+0x")
		addr, err := strconv.ParseUint(strings.TrimSuffix(text, "@plt"), 16, 64)
		if names := s.at(addr); ok && err == nil && len(names) > 0 {
			f.name = names[0] + "@plt"
			for _, name := range names[1:] {
				s.functions = append(s.functions, function{f.start, f.end, name + "@plt"})
				f = &s.functions[i]
			}
		}
	}
	s.sort()
	return s, nil
}

func (s *symbols) sort() {
	slices.SortFunc(s.functions, func(a, b function) int { return cmp.Compare(a.start, b.start) })
	for _, f := range s.functions {
		s.longest = max(s.longest, f.end-f.start)
	}
}

// nearest gets the nearest function before each address from addr2line.
func nearest(ctx context.Context, path string, addrs []uint64) (map[uint64]string, error) {
	return addr2line(addrs, exec.CommandContext(ctx, "addr2line", "-f", "-e", path))
}

// goNames gets the functions at a Go program's addresses from "go tool addr2line".
func goNames(ctx context.Context, path string, addrs []uint64) (map[uint64]string, error) {
	return addr2line(addrs, exec.CommandContext(ctx, "go", "tool", "addr2line", path))
}

// addr2line returns the function that cmd prints for each address.
func addr2line(addrs []uint64, cmd *exec.Cmd) (map[uint64]string, error) {
	var input strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&input, "%#x\n", a)
	}
	cmd.Stdin = strings.NewReader(input.String())
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n") // two per address: function, file:line
	if len(lines) != 2*len(addrs) {
		return nil, fmt.Errorf("%s: %d lines for %d addresses", cmd, len(lines), len(addrs))
	}
	names := map[uint64]string{}
	for i, a := range addrs {
		names[a] = lines[2*i]
	}
	return names, nil
}

// perfMap returns the names in a process's perf map.
func perfMap(pid int) map[string]bool {
	text, _ := os.ReadFile(fmt.Sprintf("/tmp/perf-%d.map", pid)) // without the file, there are no names
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimRight(line, "\n"), " ", 3); len(fields) == 3 {
			names[strings.TrimSpace(fields[2])] = true
		}
	}
	return names
}

// debugFile returns the path of a file's debug symbols, which a package of the distribution installs.
func debugFile(ctx context.Context, path string) string {
	out, _ := exec.CommandContext(ctx, "readelf", "-n", path).Output() // no output, no ID
	_, id, _ := strings.Cut(string(out), "Build ID: ")
	if id, _, _ = strings.Cut(id, "\n"); len(id) < 3 {
		return "/nonexistent"
	}
	return "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
}

// copyVDSO copies this process's vDSO into a file.
func copyVDSO() (string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", fmt.Errorf("looking for the vdso: %w", err)
	}
	var from, to uint64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), " [vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return "", fmt.Errorf("looking for the vdso: %w", err)
			}
		}
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return "", fmt.Errorf("reading the vdso: %w", err)
	}
	defer memory.Close()
	content := make([]byte, to-from)
	if _, err := memory.ReadAt(content, int64(from)); err != nil {
		return "", fmt.Errorf("reading the vdso: %w", err)
	}
	f, err := os.CreateTemp("", "vdso")
	if err != nil {
		return "", fmt.Errorf("copying the vdso: %w", err)
	}
	defer f.Close()
	_, err = f.Write(content)
	return f.Name(), err
}

// stubs gets a file's PLT stubs from objdump. A stub has 8 or 16 bytes.
func stubs(ctx context.Context, path string) (all []function) {
	for _, section := range []string{".plt", ".plt.sec", ".plt.got"} {
		out, err := exec.CommandContext(ctx, "objdump", "-d", "-j", section, path).Output()
		if err != nil {
			continue // this section does not exist
		}
		for line := range strings.Lines(string(out)) {
			at, label, ok := strings.Cut(strings.TrimSpace(line), " <")
			addr, err := strconv.ParseUint(at, 16, 64)
			if ok && err == nil && strings.HasSuffix(label, "@plt>:") {
				size := uint64(16)
				if section == ".plt.got" {
					size = 8
				}
				name, _, _ := strings.Cut(label, "@")
				all = append(all, function{addr, addr + size, name + "@plt"})
			}
		}
	}
	return all
}

// at returns all functions that cover an address.
func (s *symbols) at(addr uint64) (names []string) {
	i, _ := slices.BinarySearchFunc(s.functions, addr, func(f function, addr uint64) int {
		if f.start <= addr {
			return -1
		}
		return 1
	})
	for i--; i >= 0 && addr-s.functions[i].start < s.longest; i-- {
		if f := s.functions[i]; addr < f.end {
			names = append(names, plain(f.name))
		}
	}
	return names
}

// plain returns a name without its symbol version.
func plain(name string) string {
	if strings.HasSuffix(name, "@plt") {
		return name
	}
	name, _, _ = strings.Cut(name, "@")
	return name
}
