package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// entry is a file or folder of an image, with its source on this machine.
type entry struct {
	path   string // in the image, absolute
	mode   fs.FileMode
	source string // on this machine; empty for a folder
}

// builder collects the files of a manifest. It compiles programs into scratch, which the caller removes.
type builder struct {
	manifest manifest
	version  string
	inputs   map[string]string
	scratch  string
}

// gather compiles programs and finds files for one architecture. The entries are sorted by path, with every folder before its
// content.
func (b *builder) gather(ctx context.Context, arch string) ([]entry, error) {
	ldflags, err := b.ldflags(ctx)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for i, f := range b.manifest.Files {
		var source string
		switch {
		case f.Go != "":
			if source, err = filepath.Abs(filepath.Join(b.scratch, arch, fmt.Sprint(i))); err == nil {
				err = compile(ctx, arch, ldflags, f.In, f.Go, source)
			}
		case f.Module != "":
			var dir string
			dir, err = goList(ctx, "{{.Dir}}", f.Module)
			source = filepath.Join(dir, filepath.FromSlash(f.Source))
		default:
			source = cmp.Or(b.inputs[f.Input], f.Default)
			if source == "" {
				err = fmt.Errorf("the manifest's input %s has no file: set -file %s=PATH", f.Input, f.Input)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", f.Path, err)
		}
		info, err := os.Stat(source)
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", f.Path, err)
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("file %s: %s is not a regular file", f.Path, source)
		}
		entries = append(entries, entry{path: f.Path, mode: f.Mode, source: source})
	}
	return withFolders(entries, b.manifest.Folders), nil
}

func withFolders(files []entry, folders []string) []entry {
	dirs := map[string]bool{}
	add := func(dir string) {
		for ; dir != "/"; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	for _, f := range files {
		add(path.Dir(f.path))
	}
	for _, dir := range folders {
		add(dir)
	}
	entries := slices.Clone(files)
	for dir := range dirs {
		entries = append(entries, entry{path: dir, mode: fs.ModeDir | 0o755})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries
}

var variable = regexp.MustCompile(`\$\{[^}]*\}`)

func (b *builder) ldflags(ctx context.Context) (string, error) {
	flags := []string{"-s", "-w", "-buildid="}
	for _, name := range slices.Sorted(maps.Keys(b.manifest.Set)) {
		var err error
		value := variable.ReplaceAllStringFunc(b.manifest.Set[name], func(v string) string {
			expr := v[2 : len(v)-1]
			if expr == "VERSION" {
				return b.version
			}
			module, ok := strings.CutPrefix(expr, "module:")
			if !ok {
				err = fmt.Errorf("unknown variable %s", v)
				return ""
			}
			var version string
			if version, err = goList(ctx, "{{.Version}}", module); err != nil {
				return ""
			}
			return version
		})
		if err != nil {
			return "", fmt.Errorf("manifest key set.%s: %w", name, err)
		}
		flags = append(flags, "-X", name+"="+value)
	}
	return strings.Join(flags, " "), nil
}

// compile builds a static program of the module in dir, or of the main module. go writes its output to this program's standard
// error.
func compile(ctx context.Context, arch, ldflags, dir, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compiling %s for %s: %w", pkg, arch, err)
	}
	return nil
}

func goList(ctx context.Context, format, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", format, module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("finding the module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// list prints one line per file: path, mode, size and SHA-256.
func list(w io.Writer, entries []entry) error {
	for _, e := range entries {
		if e.mode.IsDir() {
			continue
		}
		data, err := os.ReadFile(e.source)
		if err != nil {
			return fmt.Errorf("listing %s: %w", e.path, err)
		}
		if _, err := fmt.Fprintf(w, "%s %04o %d sha256:%x\n", e.path, e.mode.Perm(), len(data), sha256.Sum256(data)); err != nil {
			return fmt.Errorf("listing %s: %w", e.path, err)
		}
	}
	return nil
}

// writeRootfs writes the entries below dir.
func writeRootfs(dir string, entries []entry) error {
	for _, e := range entries {
		target := filepath.Join(dir, filepath.FromSlash(e.path))
		if e.mode.IsDir() {
			if err := os.MkdirAll(target, e.mode.Perm()); err != nil {
				return fmt.Errorf("writing %s: %w", e.path, err)
			}
			continue
		}
		data, err := os.ReadFile(e.source)
		if err != nil {
			return fmt.Errorf("writing %s: %w", e.path, err)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("writing %s: %w", e.path, err)
		}
		if err := os.WriteFile(target, data, e.mode.Perm()); err != nil {
			return fmt.Errorf("writing %s: %w", e.path, err)
		}
		// WriteFile does not change the mode of an existing file, and applies the umask to a new one.
		if err := os.Chmod(target, e.mode.Perm()); err != nil {
			return fmt.Errorf("writing %s: %w", e.path, err)
		}
	}
	return nil
}
