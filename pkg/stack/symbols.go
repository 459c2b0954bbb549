package stack

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// KernelSymbols holds the symbols that name a kernel's frames. A process loads them once and shares them. The exported fields
// never change. The tables of modules and programs follow the running kernel, and are safe for concurrent use.
type KernelSymbols struct {
	// Start and End are the start and end of the kernel's image, _stext and _end. Both are 0 if they could not be read. They
	// are secret.
	Start, End uint64
	// BuildID is the kernel's GNU build ID in lower-case hexadecimal, or "".
	BuildID string

	// modules holds the running kernel's modules. It is nil if the symbols belong to another kernel.
	modules *moduleTable
	// programs holds the running kernel's eBPF programs. It is nil if the symbols belong to another kernel.
	programs *programTable
	// functions returns the names of the image's functions. It reads them at the first call, because most stacks include their
	// names. generated reads the names of code that the kernel has created so far. Both are nil if the symbols belong to another
	// kernel.
	functions, generated func() (*functionTable, error)
}

// LoadKernelSymbols reads the running kernel's symbols from /proc/kallsyms and its build ID from /sys/kernel/notes, which takes
// tens of milliseconds. The result is usable despite an error. Frames then lack the unreadable parts.
func LoadKernelSymbols() (*KernelSymbols, error) {
	s := &KernelSymbols{
		modules:   &moduleTable{root: "/"},
		programs:  &programTable{},
		functions: sync.OnceValues(func() (*functionTable, error) { return loadFunctionTable((*kernelSymbol).ofImage) }),
		generated: func() (*functionTable, error) { return loadFunctionTable((*kernelSymbol).isGenerated) },
	}
	return s, errors.Join(
		readFile("/proc/kallsyms", s.readKallsyms),
		readFile("/sys/kernel/notes", func(r io.Reader) (err error) {
			s.BuildID, err = readBuildIDNote(r)
			return err
		}),
	)
}

// HostSymbols calls LoadKernelSymbols once per process.
var HostSymbols = sync.OnceValues(LoadKernelSymbols)

func loadFunctionTable(wanted func(*kernelSymbol) bool) (*functionTable, error) {
	return fromKallsyms(func(r io.Reader) (*functionTable, error) { return readFunctionTable(r, wanted) })
}

func fromKallsyms[T any](read func(io.Reader) (T, error)) (v T, err error) {
	err = readFile("/proc/kallsyms", func(r io.Reader) error {
		v, err = read(r)
		return err
	})
	return v, err
}

func readFile(path string, read func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading the kernel's symbols: %w", err)
	}
	defer f.Close()
	if err := read(f); err != nil {
		return fmt.Errorf("reading the kernel's symbols: %s: %w", path, err)
	}
	return nil
}

// readKallsyms finds the start and end of the image. A kernel that only lists functions (without CONFIG_KALLSYMS_ALL) has no
// _end, so its image ends with its code. Modules follow the image.
func (s *KernelSymbols) readKallsyms(r io.Reader) error {
	var start, end uint64
	err := eachSymbol(r, func(sym kernelSymbol) bool {
		if !sym.ofImage() {
			return false
		}
		switch string(sym.name) {
		case "_stext":
			start = sym.addr
		case "_etext", "_einittext":
			end = max(end, sym.addr)
		case "_end":
			end = sym.addr
			return false
		}
		return true
	})
	if err != nil {
		return err
	}
	switch {
	case start == 0:
		return fmt.Errorf("%w: kernel frames are exported without addresses", errHidden)
	case end <= start:
		return errors.New("the end of the kernel's image is unknown: kernel frames are exported without addresses")
	}
	s.Start, s.End = start, end
	return nil
}

// maxNotes limits how many bytes are read from a notes file.
const maxNotes = 1 << 20

// readBuildIDNote finds the build ID in ELF notes.
func readBuildIDNote(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxNotes))
	if err != nil {
		return "", err
	}
	if id := buildid.OfNotes(b); id != "" {
		return id, nil
	}
	return "", errors.New("no build ID: kernel frames are exported without a mapping")
}

// module is a loaded kernel module. It is immutable.
type module struct {
	name string
	// start and end are the limits of its code. end can be too high, because /proc/modules lists the total size of code and
	// data. Since Linux 6.4, the data is elsewhere.
	start, end uint64
	// mapping holds the module's build ID, and its name in brackets like perf.
	mapping profile.Mapping
	// functions holds the functions of all modules.
	functions *functionTable
}

// function returns the name of the module's function at an address, or "".
func (m *module) function(addr uint64) string { return m.functions.name(addr, addr-m.start+1) }

// moduleTable holds the kernel's modules. It is safe for concurrent use.
type moduleTable struct {
	// root is the directory that contains proc and sys.
	root string

	mu      sync.Mutex
	loaded  []module
	known   bool // the last call of load succeeded
	looked  time.Time
	changed int // how often the list has changed
}

// current returns the result of load, and how often the list has changed. It calls load at most once per lookAgain.
func (t *moduleTable) current(now time.Time) (modules []module, ok bool, changed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looked.IsZero() || now.Sub(t.looked) >= lookAgain {
		t.looked = now
		_, t.known = t.load()
	}
	return t.loaded, t.known, t.changed
}

// load returns the currently loaded modules, sorted by address. It returns false if the modules or their addresses are not
// known. A kernel without module support has no /proc/modules, so the result is empty and true. Do not modify the result: the
// next call returns it again if the modules are the same. The caller holds mu.
func (t *moduleTable) load() (modules []module, ok bool) {
	err := t.read("proc/modules", func(r io.Reader) (err error) {
		modules, err = readModules(r)
		return err
	})
	if err != nil {
		return nil, errors.Is(err, fs.ErrNotExist)
	}
	same := func(a, b module) bool { return a.name == b.name && a.start == b.start && a.end == b.end }
	if slices.EqualFunc(modules, t.loaded, same) {
		return t.loaded, true
	}
	var functions *functionTable
	err = t.read("proc/kallsyms", func(r io.Reader) (err error) {
		functions, err = readFunctionTable(r, (*kernelSymbol).ofModule)
		return err
	})
	if err != nil {
		return nil, false
	}
	for i := range modules {
		m := &modules[i]
		m.functions = functions
		// Frames of a module without a build ID have no mapping.
		_ = t.read(filepath.Join("sys/module", m.name, "notes/.note.gnu.build-id"), func(r io.Reader) error {
			id, err := readBuildIDNote(r)
			if err == nil {
				m.mapping = profile.Mapping{File: "[" + m.name + "]", GNUBuildID: id}
			}
			return err
		})
	}
	if t.loaded != nil {
		t.changed++
	}
	t.loaded = modules
	return modules, true
}

func (t *moduleTable) read(path string, read func(io.Reader) error) error {
	return readFile(filepath.Join(t.root, path), read)
}

// readModules reads /proc/modules.
func readModules(r io.Reader) ([]module, error) {
	var modules []module
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		// nf_tables 311296 250 nft_compat,nft_limit, Live 0xffffffffc0a4e000
		fields := strings.Fields(scanner.Text())
		if len(fields) < 6 {
			continue
		}
		size, err := strconv.ParseUint(fields[1], 10, 32)
		start, ok := parseAddress(fields[5])
		if err != nil || !ok || start == 0 {
			return nil, errors.New("the addresses of modules are hidden")
		}
		modules = append(modules, module{name: fields[0], start: start, end: start + size})
	}
	slices.SortFunc(modules, func(a, b module) int { return cmp.Compare(a.start, b.start) })
	return modules, scanner.Err()
}

// findModule returns the module at an address, or nil.
func findModule(modules []module, addr uint64) *module {
	i := sort.Search(len(modules), func(i int) bool { return modules[i].start > addr }) - 1
	if i < 0 || addr >= modules[i].end {
		return nil
	}
	return &modules[i]
}
