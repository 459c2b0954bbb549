package loads

import (
	"bytes"
	"crypto/sha512"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// apart lists the programs whose runtimes are not in the tests' distribution. Apart returns them.
var apart = []Load{
	erlang("beam-stripped", "Erlang/OTP 27, Debian 13's", false),
	erlang("beam-map", "the same with `+JPperf map`", false, "+JPperf", "map"),
	erlang("beam", "Erlang/OTP 27, not stripped", true),
	erlang("beam-fp", "the same with `+JPperf fp`", true, "+JPperf", "fp"),
	{
		Name: "dotnet", What: ".NET " + dotnetVersion, Packages: []string{"gcc", "libc6-dev", "mono-mcs", "npm"}, Naming: Interpreter, FrameType: "dotnet",
		Entry: "Main", Chain: chain("Main"), Shares: shares, build: buildDotnet,
	},
}

func erlang(name, what string, symbols bool, flags ...string) Load {
	return Load{
		Name: name, What: what, Packages: []string{"binutils", "mmdebstrap"}, Naming: Interpreter, FrameType: "beam",
		Entry: "main", Chain: chain("main"), Shares: shares, build: buildErlang(symbols, flags...),
	}
}

// shared makes a file or folder that several loads of one folder use. The first load that needs it makes it.
func (b *builder) shared(name string, build func(path string) error) (string, error) {
	path := filepath.Join(filepath.Dir(b.p.Dir), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	half := path + ".half"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if err := build(half); err != nil {
		return "", err
	}
	return path, os.Rename(half, path)
}

// buildErlang runs load.erl with the Erlang of Debian 13, in a root of its own, because its C library is newer. That Erlang is
// stripped. With symbols, it has a symbol table with the only symbol that the unwinder looks up in it.
func buildErlang(symbols bool, flags ...string) func(*builder) error {
	return func(b *builder) error {
		root, err := b.shared("debian13", func(path string) error {
			return b.tool(nil, "mmdebstrap", "--quiet", "--format=directory", "--variant=minbase", "--include=erlang-base", "trixie", path)
		})
		if err != nil {
			return err
		}
		source, err := b.source("load.erl")
		if err != nil {
			return err
		}
		inside := filepath.Join("/", b.p.Name)
		for _, args := range [][]string{
			{"mkdir", "-p", root + inside},
			{"cp", source, root + inside},
			{"chroot", root, "/usr/bin/erlc", "-o", inside, filepath.Join(inside, "load.erl")},
		} {
			if err := b.tool(nil, args[0], args[1:]...); err != nil {
				return err
			}
		}
		bins, err := filepath.Glob(filepath.Join(root, "usr/lib/erlang/erts-*/bin"))
		if err != nil || len(bins) != 1 {
			return fmt.Errorf("the folder of Erlang's programs: found %q: %w", bins, err)
		}
		bin := strings.TrimPrefix(bins[0], root)
		if symbols {
			bin = filepath.Join(inside, "bin")
			if err := b.tool(nil, "cp", "-r", bins[0], root+bin); err != nil {
				return err
			}
			if err := b.addRanges(filepath.Join(root+bin, "beam.smp")); err != nil {
				return err
			}
		}
		// The root is a mount, like a container's. In it runs the command of the script erl, with as few other threads as possible.
		b.p.Args = append([]string{
			"unshare", "-m", "/bin/sh", "-c", `mount --bind "$1" "$1" && exec chroot "$@"`, "sh", root,
			"/usr/bin/env", "ROOTDIR=/usr/lib/erlang", "BINDIR=" + bin, "EMU=beam", "PROGNAME=erl", bin + "/erlexec",
			"+S", "1:1", "+SDcpu", "1:1", "+SDio", "1", "+A", "1", "-noinput", "-pa", inside, "-s", "load", "main",
		}, flags...)
		return nil
	}
}

// addRanges adds the symbol r to a stripped Erlang: a static variable with the addresses of all generated code. It is right behind
// the variable that the exported function erts_ranges_sz reads first.
func (b *builder) addRanges(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	exported, err := f.DynamicSymbols()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(exported, func(s elf.Symbol) bool { return s.Name == "erts_ranges_sz" })
	text, bss := f.Section(".text"), f.Section(".bss")
	if i < 0 || text == nil || bss == nil || f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%s is not the supported Erlang for x86-64", path)
	}
	at := exported[i].Value
	code := make([]byte, 7)
	if _, err := text.ReadAt(code, int64(at-text.Addr)); err != nil {
		return err
	}
	if !bytes.HasPrefix(code, []byte{0x48, 0x8b, 0x05}) { // mov offset(%rip),%rax
		return fmt.Errorf("%s: erts_ranges_sz begins with % x", path, code)
	}
	ranges := at + uint64(len(code)) + uint64(int64(int32(binary.LittleEndian.Uint32(code[3:])))) + 8
	if ranges < bss.Addr || ranges >= bss.Addr+bss.Size {
		return fmt.Errorf("%s: %#x is not in .bss", path, ranges)
	}
	return b.tool(nil, "objcopy", "--add-symbol", fmt.Sprintf("r=.bss:%#x,object,local", ranges-bss.Addr), path)
}

// This program on npm includes the whole .NET runtime, under the MIT license. npm states this hash for it.
const (
	dotnetVersion = "9.0.7"
	dotnetPackage = "@azure/mcp-linux-x64@0.5.8"
	dotnetSHA512  = "Jzut7k3lqR1p310Ycq0sWWeRu03YPI5giOyplk6FcyofvuXKn3K7bTipQj7SaE3COAWiGrGrtJbnqSxxireo5w=="
)

// buildDotnet compiles Load.cs, and a program that runs it like the program dotnet. The runtime is in a folder like an installed
// one, from which the unwinder takes its version.
func buildDotnet(b *builder) error {
	for _, name := range []string{"dotnet.c", "Load.cs"} {
		if _, err := b.source(name); err != nil {
			return err
		}
	}
	runtime := b.path("shared/Microsoft.NETCore.App/" + dotnetVersion)
	if err := os.MkdirAll(runtime, 0o755); err != nil {
		return err
	}
	if err := b.tool(nil, "npm", "pack", "--silent", dotnetPackage); err != nil {
		return err
	}
	archives, err := filepath.Glob(b.path("*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("the package %s: found %q: %w", dotnetPackage, archives, err)
	}
	archive, err := os.ReadFile(archives[0])
	if err != nil {
		return err
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != dotnetSHA512 {
		return fmt.Errorf("the package %s has another checksum", dotnetPackage)
	}
	err = errors.Join(
		b.tool(nil, "tar", "-xzf", archives[0], "-C", runtime, "--strip-components=2", "--wildcards",
			"package/dist/lib*.so", "package/dist/System.*.dll", "package/dist/Microsoft.Win32.*.dll", "package/dist/mscorlib.dll"),
		os.Remove(archives[0]),
		b.tool(nil, "mcs", "-optimize", "-out:load.dll", "Load.cs"),
		native("gcc", "dotnet.c", "-O1")(b),
	)
	b.p.Args, b.p.Binary, b.p.Unstripped = append(b.p.Args, runtime, b.path("load.dll")), "", ""
	return err
}
