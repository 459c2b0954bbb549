package loads

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed src
var sources embed.FS

// Program is a load that has been built.
type Program struct {
	Load
	// Dir is the folder in which it runs.
	Dir string
	// Args is its command line, without the limits.
	Args []string
	// Binary is the ELF file with the program's own functions, if there is one. Unstripped is the same file with its symbol table
	// and the same addresses.
	Binary, Unstripped string
}

// builder is a build in progress.
type builder struct {
	ctx context.Context
	p   *Program
}

// Build builds the program into a folder of its own below dir. It needs Load.Packages.
func (l Load) Build(ctx context.Context, dir string) (*Program, error) {
	dir, err := filepath.Abs(filepath.Join(dir, l.Name))
	if err != nil {
		return nil, fmt.Errorf("building the load %s: %w", l.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("building the load %s: %w", l.Name, err)
	}
	b := &builder{ctx, &Program{Load: l, Dir: dir}}
	if err := l.build(b); err != nil {
		return nil, fmt.Errorf("building the load %s: %w", l.Name, err)
	}
	return b.p, nil
}

// path returns a path in the program's folder.
func (b *builder) path(name string) string { return filepath.Join(b.p.Dir, name) }

// source writes a source file to the program's folder.
func (b *builder) source(name string) (string, error) {
	text, err := sources.ReadFile("src/" + name)
	if err != nil {
		return "", err
	}
	path := b.path(filepath.Base(name))
	return path, os.WriteFile(path, text, 0o644)
}

// tool runs a command to its end in the program's folder.
func (b *builder) tool(env []string, name string, args ...string) error {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = b.p.Dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s (Debian packages %s): %w\n%s", name, strings.Join(args, " "), strings.Join(b.p.Packages, " "), err, out)
	}
	return nil
}

// command is an existing program under the load's name.
func command(path string, args ...string) func(*builder) error {
	return func(b *builder) error {
		path, err := exec.LookPath(path)
		if err != nil {
			return err
		}
		link := b.path(b.p.Name)
		_ = os.Remove(link)
		if err := os.Symlink(path, link); err != nil {
			return err
		}
		b.p.Args = append([]string{link}, args...)
		return nil
	}
}

// script is a source file run by its interpreter.
func script(source, interpreter string, args ...string) func(*builder) error {
	return func(b *builder) error {
		path, err := b.source(source)
		if err != nil {
			return err
		}
		return command(interpreter, append(args, path)...)(b)
	}
}

// native is a source file compiled with -o.
func native(compiler, source string, flags ...string) func(*builder) error {
	return func(b *builder) error {
		path, err := b.source(source)
		if err != nil {
			return err
		}
		out := b.path(b.p.Name)
		b.p.Args, b.p.Binary, b.p.Unstripped = []string{out}, out, out
		return b.tool(nil, compiler, append(flags, "-o", out, path)...)
	}
}

// stripped strips the result of build.
func stripped(build func(*builder) error) func(*builder) error {
	return func(b *builder) error {
		if err := build(b); err != nil {
			return err
		}
		b.p.Unstripped = b.p.Binary + ".unstripped"
		if err := os.Rename(b.p.Binary, b.p.Unstripped); err != nil {
			return err
		}
		return b.tool(nil, "strip", "-o", b.p.Binary, b.p.Unstripped)
	}
}

// library is load.c with its functions in a shared library.
func library(strip bool) func(*builder) error {
	return func(b *builder) error {
		source, err := b.source("load.c")
		if err != nil {
			return err
		}
		lib, out := b.path("libload.so"), b.path(b.p.Name)
		b.p.Args, b.p.Binary, b.p.Unstripped = []string{out}, lib, lib
		flags := []string{"-O2", "-fomit-frame-pointer", source}
		if err := b.tool(nil, "gcc", append(flags, "-DLIBRARY", "-shared", "-fPIC", "-fvisibility=hidden", "-o", lib)...); err != nil {
			return err
		}
		if strip {
			b.p.Unstripped = lib + ".unstripped"
			if err := os.Rename(lib, b.p.Unstripped); err != nil {
				return err
			}
			if err := b.tool(nil, "strip", "-o", lib, b.p.Unstripped); err != nil {
				return err
			}
		}
		return b.tool(nil, "gcc", append(flags, "-DPROGRAM", "-o", out, lib, "-Wl,-rpath,$ORIGIN")...)
	}
}

func buildJava(b *builder) error {
	path, err := b.source("Load.java")
	if err != nil {
		return err
	}
	if err := b.tool(nil, "javac", path); err != nil {
		return err
	}
	// One thread per kind of background work is enough beside one busy thread.
	return command("java", "-XX:+UseSerialGC", "-XX:CICompilerCount=2", "-cp", b.p.Dir, "Load")(b)
}

func buildGo(source string, flags ...string) func(*builder) error {
	return func(b *builder) error {
		path, err := b.source(source)
		if err != nil {
			return err
		}
		out := b.path(b.p.Name)
		b.p.Args, b.p.Binary = []string{out}, out
		return b.tool([]string{"CGO_ENABLED=0"}, "go", append([]string{"build", "-o", out}, append(flags, path)...)...)
	}
}

// with is build, with a source file beside its result.
func with(source string, build func(*builder) error) func(*builder) error {
	return func(b *builder) error {
		if _, err := b.source(source); err != nil {
			return err
		}
		return build(b)
	}
}

// shell is a loop of short programs. It is a child process, and ends with "again" after the limit.
func shell(loop string) func(*builder) error {
	return func(b *builder) error {
		b.p.Args = []string{"/bin/sh", "-c", `end=$(($(date +%s) + LOAD_LIMIT))
again() { [ $(date +%s) -lt $end ]; }
make_data() { [ -s data ] || cat /usr/bin/openssl /bin/bash /bin/bash >data; }
echo ready
` + loop}
		return nil
	}
}

// buildCompile writes C files of a realistic size, which are compiled one after another.
func buildCompile(b *builder) error {
	for i := range 4 {
		var c strings.Builder
		c.WriteString("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
		for f := range 20 {
			fmt.Fprintf(&c, "int f%d_%d(char *s, int n)\n{\n\tint sum = %d;\n\tfor (int i = 0; i < n; i++) {\n\t\tif (s[i] == %d)\n\t\t\tsum += (int)strlen(s + i) * %d;\n"+
				"\t\telse if (sum > %d)\n\t\t\tprintf(\"%%d\\n\", sum ^= s[i]);\n\t}\n\treturn sum %% %d;\n}\n", i, f, f, f+i, f*3+1, f*1000+7, f+2)
		}
		if err := os.WriteFile(b.path(fmt.Sprintf("f%d.c", i)), []byte(c.String()), 0o644); err != nil {
			return err
		}
	}
	return shell(`while again; do for f in f0 f1 f2 f3; do gcc -O1 -c $f.c -o $f.o; done; done`)(b)
}
