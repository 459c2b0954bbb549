// notices prints the file copyright of a package: this project's licences, and the notices of all modules that are linked into
// programs.
//
//	notices VERSION PROGRAM...
package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// files matches the names of files with licences or notices in the folder of a module.
var files = []string{"LICEN[SC]E*", "licen[sc]e*", "COPYING*", "COPYRIGHT*", "NOTICE*", "PATENTS*"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("notices: ")
	if len(os.Args) < 3 {
		log.Fatal("usage: notices VERSION PROGRAM...")
	}
	if err := write(os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func write(w io.Writer, version string, programs []string) error {
	modules, err := linked(programs)
	if err != nil {
		return err
	}
	dirs, err := folders(modules)
	if err != nil {
		return err
	}
	// A text that several modules share is printed once, below all of their names.
	owners := map[string][]string{}
	for _, module := range modules {
		texts, err := notices(dirs[module])
		if err != nil {
			return fmt.Errorf("reading the notices of %s: %w", module, err)
		}
		for _, text := range texts {
			owners[text] = append(owners[text], module)
		}
	}
	own, err := os.ReadFile("LICENSE")
	if err != nil {
		return fmt.Errorf("reading this project's licence at the top of its sources: %w", err)
	}
	page, err := os.ReadFile("internal/flamepage/dist/licences.txt")
	if err != nil {
		return fmt.Errorf("reading the licences of the flame graph page: %w", err)
	}
	source := "https://github.com/ig-otel-profiles/ig-otel-profiles"
	fmt.Fprintf(w, `ig-otel-profiles %s
Source: %s

The programs are licensed under the Apache License 2.0, whose text follows.
The eBPF programs are licensed under the GNU General Public License, version 2, whose text is below.
Their sources:
  the gadgets' images: %[2]s/tree/%[1]s/gadgets
  the unwinder:        %[2]s/tree/%[1]s/cmd/unwinder/bpf
`, version, source)
	for _, module := range modules {
		if path, v, _ := strings.Cut(module, "@"); path == profiler || path == gadget {
			fmt.Fprintf(w, "  from other projects: https://%s, version %s\n", path, v)
		}
	}
	fmt.Fprintf(w, "\n%s\n", own)
	section := func(title, text string) { fmt.Fprintf(w, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 79), title, text) }
	section("Licences of the flame graph page:", string(page))
	sorted := slices.SortedFunc(maps.Keys(owners), func(a, b string) int {
		return cmp.Or(cmp.Compare(owners[a][0], owners[b][0]), cmp.Compare(a, b))
	})
	for _, text := range sorted {
		section("Licence of "+strings.Join(owners[text], ",\n           ")+":", text)
	}
	return nil
}

const (
	profiler = "go.opentelemetry.io/ebpf-profiler"
	gadget   = "github.com/inspektor-gadget/inspektor-gadget"
	std      = "Go"
)

// linked returns path@version of Go and of the modules in programs, sorted.
func linked(programs []string) ([]string, error) {
	modules := []string{std}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("listing the modules of %s: %w", program, err)
		}
		// Include the main module, because gadgetctl is built from another project's.
		for _, dep := range append(info.Deps, &info.Main) {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			if !strings.HasPrefix(dep.Path, "github.com/ig-otel-profiles/") && dep.Path != "../.." {
				modules = append(modules, dep.Path+"@"+dep.Version)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}

// folders returns the source folders of modules. The programs were built here, so Go's module cache has them.
func folders(modules []string) (map[string]string, error) {
	// Ask the go command: runtime.GOROOT is empty in a program that was built with -trimpath.
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module cache of Go: %w", err)
	}
	root, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	dirs := map[string]string{std: root}
	for _, module := range modules {
		if module != std {
			// The cache replaces "A" by "!a".
			dirs[module] = filepath.Join(cache, capital.ReplaceAllStringFunc(module, func(c string) string { return "!" + strings.ToLower(c) }))
		}
	}
	return dirs, nil
}

var capital = regexp.MustCompile("[A-Z]")

// notices returns the texts in the folder of a module. It returns an error if there is none.
func notices(dir string) ([]string, error) {
	var texts []string
	for _, pattern := range files {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are valid
		for _, file := range found {
			text, err := os.ReadFile(file)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EISDIR) {
				continue
			}
			if err != nil {
				return nil, err
			}
			texts = append(texts, strings.TrimSpace(string(text)))
		}
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s has no licence file: find the licence before you ship the program", dir)
	}
	return slices.Compact(texts), nil
}
