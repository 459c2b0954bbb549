package walk

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/cfi"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// world is what a process runs: the C library of this machine. At the beginning of a function of it, the return address is on top of the
// stack.
type world struct {
	t       *testing.T
	table   *cfi.Table
	entry   uint64 // a function's first byte
	restore uint64 // the code that a signal's handler returns to

	asked   []uint64
	states  map[uint64]names.Frame // by address; without one it is the function
	pending bool                   // the names are
	unread  bool                   // the rules are
}

var libc = &procmap.File{Path: "libc", ID: symbols.FileID{Inode: 1}}

func newWorld(t *testing.T) *world {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the stacks here are those of amd64")
	}
	found, err := filepath.Glob("/lib/x86_64-linux-gnu/libc.so.6")
	require.NoError(t, err)
	if len(found) == 0 {
		t.Skip("no C library where Debian has it")
	}
	content, err := os.ReadFile(found[0])
	require.NoError(t, err)
	w := &world{t: t, states: map[uint64]names.Frame{}}
	w.table, err = cfi.Read(bytes.NewReader(content), int64(len(content)), cfi.Limits{})
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(content))
	require.NoError(t, err)
	all, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range all {
		if s.Name == "malloc" {
			w.entry = s.Value
		}
	}
	require.NotZero(t, w.entry)
	// mov $15, %rax; syscall
	for from := 0; !w.table.Signal(w.restore); {
		at := bytes.Index(content[from:], []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05})
		require.GreaterOrEqual(t, at, 0)
		w.restore = uint64(from + at)
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && uint64(from+at)-p.Off < p.Filesz {
				w.restore = uint64(from+at) - p.Off + p.Vaddr
			}
		}
		from += at + 1
	}
	return w
}

func (w *world) Resolve(dst []names.Frame, _ procmap.Process, _ uint64, addrs []uint64) ([]names.Frame, bool) {
	require.Len(w.t, addrs, 1)
	w.asked = append(w.asked, addrs[0])
	f, ok := w.states[addrs[0]]
	if !ok {
		f = names.Frame{State: names.Named, File: libc, Address: w.entry}
	}
	return append(dst, f), w.pending
}

func (w *world) Lookup(id symbols.FileID, _ func() (*os.File, error), _ func() func()) (*cfi.Table, bool) {
	if w.unread {
		return nil, true
	}
	if id != libc.ID {
		return nil, false
	}
	return w.table, false
}

const base = 0x7000

// walk walks a stack of these words from an address on.
func (w *world) walk(ip uint64, words ...uint64) (s Stack, files, named bool) {
	w.t.Helper()
	var regs cfi.Registers
	regs.SetIP(ip)
	regs.SetSP(base)
	regs.SetFP(base)
	stack := cfi.Stack{Base: base}
	for _, word := range words {
		stack.Bytes = binary.LittleEndian.AppendUint64(stack.Bytes, word)
	}
	w.asked = nil
	walker := Walker{Names: w, Rules: w}
	s.Addresses = []uint64{9, 9, 9} // of the walk before
	files, named = walker.Walk(&s, procmap.Process{PID: 1}, 5, regs, stack)
	require.Len(w.t, s.Frames, len(s.Addresses))
	return s, files, named
}

func TestEnds(t *testing.T) {
	w := newWorld(t)
	s, files, named := w.walk(100, 200, 300, 0)
	require.True(t, files && named)
	require.Equal(t, Whole, s.End)
	require.Equal(t, []uint64{100, 200, 300}, s.Addresses)
	require.Equal(t, []uint64{100, 199, 299}, w.asked, "a caller is in its call")

	s, files, _ = w.walk(100, 200, 300)
	require.True(t, files)
	require.Equal(t, Copied, s.End)
	require.Equal(t, []uint64{100, 200, 300}, s.Addresses)

	many := make([]uint64, 300)
	for i := range many {
		many[i] = uint64(1000 + i)
	}
	s, files, _ = w.walk(100, many...)
	require.True(t, files)
	require.Equal(t, Deep, s.End)
	require.Len(t, s.Addresses, Most)

	// Where there is no code, the way before was wrong.
	w.states[299] = names.Frame{State: names.NotCode}
	s, files, _ = w.walk(100, 200, 300, 400, 0)
	require.True(t, files)
	require.Equal(t, Lost, s.End)
	require.Equal(t, []uint64{100, 200}, s.Addresses)

	// A call of what is no code has its return address there all the same.
	w.states = map[uint64]names.Frame{0: {State: names.NotCode}}
	s, _, _ = w.walk(0)
	require.Equal(t, []uint64{0}, s.Addresses)
	require.Equal(t, Copied, s.End)
}

// A frame that a signal has interrupted did not call anything: its address is looked up as it is, now and by who gets the stack and takes
// one off. A function that was interrupted at its first byte would be the one before.
func TestSignal(t *testing.T) {
	w := newWorld(t)
	w.states[w.restore-1] = names.Frame{State: names.Named, File: libc, Address: w.restore - 1}
	words := make([]uint64, 64)
	words[0] = w.restore
	const registers = 5 // in the signal's frame, which begins behind the return address
	words[1+registers+15] = base + 8*50
	words[1+registers+16] = 5000
	words[50], words[51] = 6000, 0
	s, files, _ := w.walk(100, words...)
	require.True(t, files)
	require.Equal(t, Whole, s.End)
	require.Equal(t, []uint64{100, w.restore, 5001, 6000}, s.Addresses)
	require.Equal(t, []uint64{100, w.restore - 1, 5000, 5999}, w.asked)
}

// What is not known yet is asked for again, and the walk says so.
func TestPending(t *testing.T) {
	w := newWorld(t)
	w.states[199] = names.Frame{State: names.Pending}
	s, files, named := w.walk(100, 200, 0)
	require.False(t, files)
	require.False(t, named)
	require.Equal(t, []uint64{100}, s.Addresses)
	require.Equal(t, Lost, s.End, "for those who do not want to wait")

	clear(w.states)
	w.pending = true
	s, files, named = w.walk(100, 200, 0)
	require.True(t, files)
	require.False(t, named, "the files are known and their functions are not")
	require.Equal(t, Whole, s.End)

	w.unread = true
	s, files, _ = w.walk(100, 200, 0)
	require.False(t, files)
	require.Equal(t, []uint64{100}, s.Addresses)
	require.Equal(t, Lost, s.End)
}

// Code without rules is left by its frame pointer.
func TestFramePointer(t *testing.T) {
	w := newWorld(t)
	other := &procmap.File{Path: "jit", ID: symbols.FileID{Inode: 2}}
	for name, f := range map[string]names.Frame{
		"a file without rules":  {State: names.Named, File: other, Address: 1},
		"no file":               {State: names.Generated},
		"a perf map":            {State: names.Generated, File: libc, Address: w.entry},
		"a file that is unread": {State: names.Unreadable, File: libc, Address: w.entry},
		"no rule there":         {State: names.Named, File: libc, Address: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.states[100] = f
			// The frame pointer of the caller, and where it goes on; there it is in a function again.
			s, files, _ := w.walk(100, base+16, 200, 300, 0)
			require.True(t, files)
			require.Equal(t, Whole, s.End)
			require.Equal(t, []uint64{100, 200, 300}, s.Addresses)
			w.states[199] = f
			s, _, _ = w.walk(100, base, 200, 300, 0)
			require.Equal(t, Lost, s.End, "a frame pointer that leads back")
			require.Equal(t, []uint64{100, 200}, s.Addresses)
			delete(w.states, 199)
		})
	}
}

func TestEndNames(t *testing.T) {
	seen := map[string]bool{}
	for e := range NumEnds {
		require.NotEmpty(t, e.String())
		require.False(t, seen[e.String()])
		seen[e.String()] = true
	}
	require.Empty(t, NumEnds.String())
	require.Empty(t, End(200).String())
}
