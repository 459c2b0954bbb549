//go:build e2e

// Package symbols compares names from pkg/symbols with names from other tools, for a distribution's programs and libraries.
package symbols

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// run returns a program's output.
func run(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(input)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v: %s", name, args, errors.String())
	return string(out)
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func read(t *testing.T, path string) *symtab.Table {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	limits := symtab.DefaultLimits()
	limits.Names *= 2 // for all functions of the largest programs, which samples never need
	task := symtab.Task{Limits: limits, Opened: f, Size: st.Size()}
	table, _, err := parse.Here{}.Read(t.Context(), &task)
	require.NoError(t, err)
	if g := table.Golang; g != nil {
		task.Kind, task.Old = symtab.ReadFunctions, table
		for i, start := range g.Start[:len(g.Start)-1] {
			task.Functions = append(task.Functions, symtab.GoRange{Number: uint32(i), Size: g.Start[i+1] - start})
		}
		table, _, err = parse.Here{}.Read(t.Context(), &task)
		require.NoError(t, err)
	}
	return table
}

// truth is a function with a size, from nm.
type truth struct {
	start, end uint64
	name       string
}

// functions returns nm's functions of a file, sorted by address. all contains the functions with a size, and unsized the
// symbols without a size.
func functions(t *testing.T, path string, flags ...string) (all, unsized []truth) {
	t.Helper()
	e, err := elf.Open(path)
	require.NoError(t, err)
	defer e.Close()
	isCode := func(addr uint64) bool {
		return slices.ContainsFunc(e.Sections, func(s *elf.Section) bool { return s.Flags&elf.SHF_EXECINSTR != 0 && addr-s.Addr < s.Size })
	}
	for line := range strings.Lines(run(t, "", "nm", append(flags, "--defined-only", "-S", "--with-symbol-versions", path)...)) {
		fields := strings.Fields(line)
		start, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil || !isCode(start) || len(fields) < 3 {
			continue
		}
		if len(fields) == 3 {
			unsized = append(unsized, truth{start: start, name: fields[2]})
			continue
		}
		size, err := strconv.ParseUint(fields[1], 16, 64)
		if err != nil || !strings.ContainsAny(fields[2], "tTwWi") {
			continue
		}
		name, _, _ := strings.Cut(strings.Join(fields[3:], " "), "@")
		all = append(all, truth{start, start + size, name})
	}
	byStart := func(a, b truth) int { return cmp.Compare(a.start, b.start) }
	slices.SortFunc(all, byStart)
	slices.SortFunc(unsized, byStart)
	return all, unsized
}

// covering returns the names of all functions at an address.
func covering(all []truth, longest, addr uint64) []string {
	var names []string
	i, _ := slices.BinarySearchFunc(all, addr+1, func(f truth, addr uint64) int { return cmp.Compare(f.start, addr) })
	for i--; i >= 0 && addr-all[i].start < longest; i-- {
		if addr < all[i].end {
			names = append(names, all[i].name)
		}
	}
	return names
}

// compare looks up the first, middle and last byte of each function, and as many random addresses in the code. It fails if nm
// does not have a name at an address, or if a name is missing.
func compare(t *testing.T, path string, table *symtab.Table, all, unsized []truth) (checked, named int) {
	t.Helper()
	require.NotEmpty(t, all)
	longest := uint64(0)
	var addrs []uint64
	for _, f := range all {
		longest = max(longest, f.end-f.start)
		addrs = append(addrs, f.start, (f.start+f.end)/2, f.end-1)
	}
	e, err := elf.Open(path)
	require.NoError(t, err)
	defer e.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for _, s := range e.Sections {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Size > 0 {
			for range max(2000, len(all)) {
				addrs = append(addrs, s.Addr+random.Uint64N(s.Size))
			}
		}
	}
	wrong, missing := 0, 0
	for _, addr := range addrs {
		got, state := table.Lookup(addr)
		want := covering(all, longest, addr)
		checked++
		switch {
		case state == symtab.Named && got.Source == symtab.SourcePLT: // see TestStubs
		case state == symtab.Named:
			named++
			if !slices.Contains(want, got.Name) && !isUnsized(got, addr, want, all, unsized) {
				if wrong++; wrong < 10 {
					t.Errorf("%#x of %s is %s (source %d), nm has %v", addr, path, got.Name, got.Source, want)
				}
			}
		case len(want) > 0:
			if missing++; missing < 10 {
				t.Errorf("%#x of %s has no name (state %d), nm has %v", addr, path, state, want)
			}
		}
	}
	require.Zero(t, wrong, "wrong names")
	require.Zero(t, missing, "missing names")
	return checked, named
}

// isUnsized reports whether a name belongs to a function without a size, and no other symbol begins between this function and
// the address.
func isUnsized(s symtab.Symbol, addr uint64, want []string, all, unsized []truth) bool {
	if len(want) > 0 || s.Source != symtab.SourceSymtab {
		return false
	}
	at := uint64(0)
	var names []string
	for _, f := range unsized {
		if f.start <= addr && f.start >= at {
			if f.start > at {
				names = nil
			}
			at, names = f.start, append(names, f.name)
		}
	}
	return slices.Contains(names, s.Name) && !slices.ContainsFunc(all, func(f truth) bool { return f.start > at && f.start <= addr })
}

const library = "/usr/lib/x86_64-linux-gnu/"

// llvm returns the largest installed library.
func llvm(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob(library + "libLLVM-*.so.1")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths[0]
}

// Debian's binaries have only a table of exported symbols.
func TestExported(t *testing.T) {
	for _, path := range []string{
		library + "libc.so.6", library + "libstdc++.so.6", library + "libcrypto.so.3", library + "libm.so.6", library + "libsqlite3.so.0",
		"/usr/bin/bash", "/usr/bin/perl", "/usr/bin/python3", "/usr/bin/openssl", llvm(t),
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			path, err := filepath.EvalSymlinks(path)
			require.NoError(t, err)
			all, unsized := functions(t, path, "-D")
			if len(all) == 0 {
				t.Skip("exports nothing")
			}
			checked, named := compare(t, path, read(t, path), all, unsized)
			t.Logf("%d addresses, %d named, of %d functions", checked, named, len(all))
			require.Greater(t, checked, 2000)
		})
	}
}

// TestSymbolTables reads programs with a symbol table that compilers of several languages wrote.
func TestSymbolTables(t *testing.T) {
	cpp := file(t, "main.cpp", `#include <map>
#include <string>
#include <iostream>
int main() { std::map<std::string, int> m; m["a"] = 1; std::cout << m.size() << std::endl; }
`)
	c := file(t, "main.c", "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n")
	rust := file(t, "main.rs", "use std::collections::HashMap;\nfn main() { let mut m = HashMap::new(); m.insert(1, \"a\"); println!(\"{:?}\", m); }\n")
	dir := t.TempDir()
	for name, command := range map[string][]string{
		"cpp":        {"g++", "-O2", cpp},
		"cpp-clang":  {"clang", "-O0", cpp, "-lstdc++"},
		"cpp-static": {"g++", "-O2", "-static", cpp},
		"c-static":   {"gcc", "-O2", "-static", c},
		"c-pie":      {"gcc", "-O2", "-static-pie", c},
		"rust":       {"rustc", "-O", rust},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			run(t, "", command[0], append(command[1:], "-o", path)...)
			all, unsized := functions(t, path)
			checked, named := compare(t, path, read(t, path), all, unsized)
			t.Logf("%d addresses, %d named, of %d functions", checked, named, len(all))
			require.Greater(t, checked, 2000)
		})
	}
}

// TestStubs compares PLT stubs with objdump.
func TestStubs(t *testing.T) {
	c := file(t, "main.c", "#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **a) { puts(a[0]); atexit((void (*)(void))abort); return printf(\"%d\", n); }\n")
	dir := t.TempDir()
	paths := []string{library + "libstdc++.so.6", library + "libcrypto.so.3", library + "libc.so.6", "/usr/bin/bash", "/usr/bin/perl", "/usr/bin/python3", "/usr/bin/openssl", llvm(t)}
	for name, flags := range map[string][]string{
		"lazy":    {"gcc", "-Wl,-z,lazy"},
		"now":     {"gcc", "-Wl,-z,now"},
		"ibt":     {"gcc", "-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy"},
		"ibt-now": {"gcc", "-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,now"},
		"no-pie":  {"gcc", "-no-pie"},
	} {
		path := filepath.Join(dir, name)
		run(t, "", flags[0], append(flags[1:], c, "-o", path)...)
		paths = append(paths, path)
	}
	const arm = "/usr/aarch64-linux-gnu/lib/"
	paths = append(paths, arm+"libc.so.6", arm+"libstdc++.so.6")
	total := 0
	for _, path := range paths {
		tool := "objdump"
		if strings.HasPrefix(path, arm) {
			tool = "llvm-objdump"
		}
		path, err := filepath.EvalSymlinks(path)
		require.NoError(t, err)
		table := read(t, path)
		right, nameless := 0, 0
		for _, section := range []string{".plt", ".plt.sec", ".plt.got"} {
			out, err := exec.Command(tool, "-d", "-j", section, path).Output()
			if err != nil {
				continue // this section does not exist
			}
			for line := range strings.Lines(string(out)) {
				at, label, ok := strings.Cut(strings.TrimSpace(line), " <")
				addr, err := strconv.ParseUint(at, 16, 64)
				if !ok || err != nil || !strings.HasSuffix(label, "@plt>:") {
					continue
				}
				name := strings.TrimSuffix(label, ">:")
				got, state := table.Lookup(addr + 4)
				switch {
				case state != symtab.Named:
					nameless++
				case strings.HasPrefix(name, "*ABS*+"): // an ifunc: objdump only has its address
					require.Equal(t, symtab.SourcePLT, got.Source)
					right++
				default:
					require.Equal(t, strings.Split(name, "@")[0]+"@plt", got.Name, "%#x of %s", addr, path)
					right++
				}
			}
		}
		t.Logf("%s: %d right, %d without a name", path, right, nameless)
		require.Zero(t, nameless, "stubs of %s without a name", path)
		require.NotZero(t, right)
		total += right
	}
	require.Greater(t, total, 2000)
}

// TestGo compares every function of the largest Go program on this machine with "go tool addr2line". The same program must have
// the same names without its symbol table.
func TestGo(t *testing.T) {
	ig := filepath.Join(os.Getenv("E2E_BIN"), "ig")
	all, _ := functions(t, ig)
	stripped := filepath.Join(t.TempDir(), "stripped")
	run(t, "", "strip", "-o", stripped, ig)
	table, bare := read(t, ig), read(t, stripped)
	var input strings.Builder
	var addrs []uint64
	for i, f := range all {
		addrs = append(addrs, f.start)
		if i%4 == 0 {
			addrs = append(addrs, (f.start+f.end)/2, f.end-1)
		}
	}
	for _, a := range addrs {
		fmt.Fprintf(&input, "%#x\n", a)
	}
	lines := strings.Split(strings.TrimSpace(run(t, input.String(), "go", "tool", "addr2line", ig)), "\n")
	require.Len(t, lines, 2*len(addrs))
	named, inlined := 0, 0
	for i, addr := range addrs {
		got, state := table.Lookup(addr)
		without, _ := bare.Lookup(addr)
		if lines[2*i] == "?" {
			require.NotEqual(t, symtab.SourcePclntab, got.Source)
			continue
		}
		require.Equal(t, symtab.Named, state)
		require.Equal(t, got, without)
		// The name belongs to the outermost function, and the position to the innermost.
		outer := got
		if n := len(got.Callers); n > 0 {
			outer = got.Callers[n-1]
			inlined++
		}
		require.Equal(t, lines[2*i], outer.Name)
		if got.Line > 0 {
			require.Equal(t, lines[2*i+1], fmt.Sprintf("%s:%d", got.File, got.Line), "%#x %s", addr, got.Name)
		}
		named++
	}
	t.Logf("%d addresses, %d of them inlined", named, inlined)
	require.Greater(t, named, 100_000)
	require.Greater(t, inlined, 1000)
}

// TestSeparate finds a container's debug files, by build ID and by debug link, and .gnu_debugdata.
func TestSeparate(t *testing.T) {
	c := file(t, "main.c", `#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static int hidden(int a) { return a * atoi("7"); }
__attribute__((noinline)) int shown(int a) { return hidden(a) + 1; }
int main(int n, char **a) { return printf("%d", shown(n)); }
`)
	root := t.TempDir()
	app := filepath.Join(root, "app")
	require.NoError(t, os.MkdirAll(filepath.Join(app, ".debug"), 0o700))
	full := filepath.Join(t.TempDir(), "full")
	run(t, "", "gcc", "-O1", "-g", "-Wl,--build-id=sha1", "-rdynamic", c, "-o", full)
	all, _ := functions(t, full)
	debug := filepath.Join(t.TempDir(), "program.debug")
	run(t, "", "objcopy", "--only-keep-debug", full, debug)
	stripped := filepath.Join(app, "program")
	run(t, "", "strip", "-o", stripped, full)

	named := func(path string) map[string]symtab.Source {
		s := symbols.NewStore(symbols.Options{Reader: parse.Here{}, HostRoot: t.TempDir()})
		defer s.Close()
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		id, err := symtab.Identify(f)
		require.NoError(t, err)
		s.Request(symbols.Request{
			ID: id, Path: "/app/" + filepath.Base(path), Open: func() (*os.File, error) { return os.Open(path) },
			Root: func() (*os.File, error) { return os.Open(root) },
		})
		require.True(t, s.Wait(t.Context(), id))
		found := map[string]symtab.Source{}
		for _, f := range all {
			for _, addr := range []uint64{f.start, f.end - 1} {
				if got, state := s.Lookup(id, addr); state == symtab.Named {
					require.Equal(t, f.name, got.Name)
					found[got.Name] = got.Source
				}
			}
		}
		return found
	}
	found := named(stripped)
	require.Equal(t, symtab.SourceDynsym, found["shown"])
	require.NotContains(t, found, "hidden")

	id := strings.TrimSpace(strings.SplitAfter(run(t, "", "readelf", "-n", full), "Build ID:")[1])
	id, _, _ = strings.Cut(id, "\n")
	byID := filepath.Join(root, "usr/lib/debug/.build-id", id[:2], id[2:]+".debug")
	require.NoError(t, os.MkdirAll(filepath.Dir(byID), 0o700))
	run(t, "", "cp", debug, byID)
	found = named(stripped)
	require.Equal(t, symtab.SourceDebugFile, found["hidden"])
	require.Equal(t, symtab.SourceDebugFile, found["shown"])
	// Another program's debug file is ignored.
	other := filepath.Join(t.TempDir(), "other")
	run(t, "", "gcc", "-O1", "-g", "-Wl,--build-id=sha1", "-DX", "-O0", c, "-o", other)
	run(t, "", "objcopy", "--only-keep-debug", other, byID)
	require.NotContains(t, named(stripped), "hidden")
	require.NoError(t, os.Remove(byID))

	linked := filepath.Join(app, "linked")
	run(t, "", "objcopy", "--add-gnu-debuglink="+debug, stripped, linked)
	for _, place := range []string{"app", "app/.debug", "usr/lib/debug/app"} {
		path := filepath.Join(root, place, "program.debug")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		run(t, "", "cp", debug, path)
		require.Equal(t, symtab.SourceDebugFile, named(linked)["hidden"], place)
		require.NotContains(t, named(stripped), "hidden", "the file has no debug link")
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(content, 0), 0o600))
		require.NotContains(t, named(linked), "hidden", "the checksum is wrong")
		require.NoError(t, os.Remove(path))
	}

	mini := filepath.Join(t.TempDir(), "mini")
	run(t, "", "objcopy", "-S", "--remove-section", ".comment", "--keep-symbol=hidden", "--keep-symbol=main", debug, mini)
	for _, level := range []string{"-6", "-0"} {
		packed := file(t, "mini.xz", run(t, "", "xz", "-c", level, mini))
		withMini := filepath.Join(app, "mini"+level)
		run(t, "", "objcopy", "--add-section", ".gnu_debugdata="+packed, stripped, withMini)
		found = named(withMini)
		require.Equal(t, symtab.SourceMiniDebug, found["hidden"])
		require.Equal(t, symtab.SourceDynsym, found["shown"])
	}
}
