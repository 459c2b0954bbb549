package symbols

import (
	"bytes"
	"compress/zlib"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// readerBound limits the memory, in bytes, of a process that reads hostile files. It includes the memory for one file and for the
// test itself. storeBound limits the memory of the process that requests the reads and stores little of the files.
const (
	readerBound = 256 << 20
	storeBound  = 64 << 20
)

// readerEnv lists the files that the test binary reads in another process, so the processes have separate peaks. served marks
// the process that reads the files.
const (
	readerEnv = "SYMBOLS_TEST_READ"
	served    = "served"
)

// TestPeakServed reads files that arrive on the socket at descriptor 3. It runs in a child process of TestPeakReader.
func TestPeakServed(t *testing.T) {
	if os.Getenv(readerEnv) != served {
		t.Skip("it is the child of TestPeakReader")
	}
	c, err := symtab.NewConn(os.NewFile(3, "socket"))
	require.NoError(t, err)
	require.NoError(t, parse.Here{}.Serve(c, symtab.DefaultLimits().Memory, nil))
	fmt.Printf("reader's peak %d kB\n", peak(t))
}

// peak returns the peak memory of this process in kilobytes.
func peak(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	kb, err := strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)[1]))
	require.NoError(t, err)
	return kb
}

// servedApart returns a Reader in another process.
func servedApart(t *testing.T) symtab.Reader {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	c, err := symtab.NewConn(os.NewFile(uintptr(fds[0]), "here"))
	require.NoError(t, err)
	there := os.NewFile(uintptr(fds[1]), "there")
	cmd := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestPeakServed$", "-test.v")
	cmd.Env = append(os.Environ(), readerEnv+"="+served)
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{there}, os.Stdout, os.Stderr
	require.NoError(t, cmd.Start())
	there.Close()
	a := &apart{c, make(chan error, 1)}
	go func() { a.done <- cmd.Wait() }()
	return a
}

// TestPeakReader reads the files in readerEnv through a Store, one at a time. It reports the names at their addresses, and the
// memory peaks of both processes. It runs in a child process of TestPeak.
func TestPeakReader(t *testing.T) {
	files, ok := os.LookupEnv(readerEnv)
	if !ok || files == served {
		t.Skip("it is the child of TestPeak")
	}
	s := newStore(t, Options{Lines: true, Reader: servedApart(t)})
	for _, path := range strings.Fields(files) {
		path, addr, _ := strings.Cut(path, ",")
		f, err := os.Open(path)
		require.NoError(t, err)
		id, err := symtab.Identify(f)
		require.NoError(t, err)
		f.Close()
		if filepath.Ext(path) == ".map" {
			id = symtab.FileID{Dev: id.Dev, Inode: id.Inode, Process: 1}
		}
		s.Request(Request{ID: id, Path: path, Open: func() (*os.File, error) { return os.Open(path) }})
		require.True(t, s.Wait(t.Context(), id))
		at, err := strconv.ParseUint(addr, 16, 64)
		require.NoError(t, err)
		symbol, _ := s.Lookup(id, at)
		fmt.Printf("%s: %.8s %v\n", filepath.Base(path), symbol.Name, s.LastError())
	}
	fmt.Printf("store's peak %d kB\n", peak(t))
}

// Hostile files are small but claim large sizes. No file may need more memory than the limit. Two alternating names must each
// be stored once.
func TestPeak(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes and reads some hundred megabytes")
	}
	global := elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)
	code := elftest.TestSection{Name: ".text", Kind: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: 0x1000, Size: 1 << 31}
	long := strings.Repeat // a later variable is named strings
	for name, c := range map[string]struct {
		files map[string]func(t *testing.T) []byte // by name and address to look up
		want  []string
	}{
		"two long names in turn": {
			map[string]func(*testing.T) []byte{"a.elf,1004": func(*testing.T) []byte {
				strings := []byte("\x00" + long("A", 16000) + "\x00" + long("B", 16000) + "\x00")
				return new(elftest.TestELF).Add(code).RawSymbols(100_000, strings, func(i int) elf.Sym64 {
					return elf.Sym64{Name: uint32(1 + i%2*16001), Info: global, Shndx: 1, Value: 0x1000 + 4*uint64(i), Size: 4}
				}).Bytes()
			}},
			[]string{"a.elf: BBBBBBBB <nil>"},
		},
		"a perf map of a long name in pieces": {
			map[string]func(*testing.T) []byte{"b.map,700000000001": func(*testing.T) []byte {
				b := []byte("700000000000 4000000 " + long("L", 8000) + "\n")
				for i := range 130_000 {
					b = fmt.Appendf(b, "%x 1 a\n", 0x700000000000+256*i)
				}
				return b
			}},
			[]string{"b.map: LLLLLLLL <nil>"},
		},
		"two million nested symbols": {
			map[string]func(*testing.T) []byte{"c.elf,1000": func(*testing.T) []byte {
				const n = 2_000_000
				strings := []byte{0}
				for i := range n {
					strings = fmt.Appendf(strings, "%031x\x00", i*0x9e3779b97f4a7c1)
				}
				return new(elftest.TestELF).Add(code).RawSymbols(n, strings, func(i int) elf.Sym64 {
					return elf.Sym64{Name: uint32(1 + i*32), Info: global, Shndx: 1, Value: 0x1000 + uint64(i), Size: 2 * uint64(n-i)}
				}).Bytes()
			}},
			[]string{"larger than the limits: too much memory needed"},
		},
		"compressed sections that lie": {
			map[string]func(*testing.T) []byte{"d1.elf,1000": lyingDebug, "d2.elf,1000": lyingDebug, "d3.elf,1000": lyingDebug},
			[]string{"d1.elf: main <nil>", "d2.elf: main <nil>", "d3.elf: main <nil>"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var read []string
			for name, content := range c.files {
				file, _, _ := strings.Cut(name, ",")
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), content(t), 0o600))
				read = append(read, filepath.Join(dir, name))
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPeakReader$", "-test.v")
			cmd.Env = append(os.Environ(), readerEnv+"="+strings.Join(read, " "))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, want := range c.want {
				require.Contains(t, string(out), want)
			}
			for who, bound := range map[string]int{"reader": readerBound, "store": storeBound} {
				peak := regexp.MustCompile(who + `'s peak (\d+) kB`).FindSubmatch(out)
				require.NotNil(t, peak, "%s", out)
				kb, err := strconv.Atoi(string(peak[1]))
				require.NoError(t, err)
				t.Logf("%s: %d MiB at the peak", who, kb>>10)
				require.Less(t, kb<<10, bound)
			}
		})
	}
}

// lyingDebug returns a file of some hundred kilobytes that claims 240 MiB of debug information in two sections. The sections
// decompress to slightly more than half of this size.
func lyingDebug(t *testing.T) []byte {
	e := new(elftest.TestELF).Code(".text", 0x1000, make([]byte, 0x100)).Symbols(".symtab", elf.SHT_SYMTAB, elftest.Function("main", 0x1000, 0x10))
	for _, name := range []string{".debug_info", ".debug_line"} {
		var b bytes.Buffer
		require.NoError(t, binary.Write(&b, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 120 << 20, Addralign: 1}))
		z := zlib.NewWriter(&b)
		_, err := io.CopyN(z, zeros{}, 66<<20)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		e.Add(elftest.TestSection{Name: name, Kind: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED, Data: b.Bytes()})
	}
	return e.Bytes()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
