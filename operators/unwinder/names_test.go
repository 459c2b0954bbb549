package unwinder

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// mappedFile returns a mapped file of this process, as the unwinder reports it.
func mappedFile(t *testing.T, path string) wire.File {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		f := wire.File{Name: filepath.Base(path), Path: path, Proc: uint32(os.Getpid()), Version: [16]byte{1}}
		var flags string
		var offset uint64
		var major, minor uint32
		if strings.HasSuffix(lines.Text(), " "+path) && strings.Contains(lines.Text(), " r-xp ") {
			_, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %x:%x %d", &f.Low, &f.High, &flags, &offset, &major, &minor, &f.Inode)
			require.NoError(t, err)
			f.Device = unix.Mkdev(major, minor)
			return f
		}
	}
	t.Fatalf("%s is not mapped", path)
	return wire.File{}
}

// opened counts this process's open files of an inode.
func opened(t *testing.T, inode uint64) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+e.Name(), &st) == nil && st.Ino == inode {
			n++
		}
	}
	return n
}

// ownFile returns this process's program, as the unwinder reports it, and names that have read no file yet.
func ownFile(t *testing.T) (wire.File, *names.Namer) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return mappedFile(t, exe), newNames(symbols.NewShared(func() symbols.Options { return symbols.Options{Reader: parse.Here{}} }))
}

// lookedUp returns the symbol at an address as soon as the file has been read.
func lookedUp(t *testing.T, r *rows, file *wire.File, proc *wire.Proc, address uint64) (symbol symtab.Symbol) {
	t.Helper()
	require.Eventually(t, func() bool {
		var pending bool
		symbol, pending = r.lookup(file, proc, address)
		return !pending
	}, 20*time.Second, 5*time.Millisecond)
	return symbol
}

// A mapped file's function must get its name, and the file must be closed when it is no longer needed.
func TestNames(t *testing.T) {
	defer goleak.VerifyNone(t)
	file, n := ownFile(t)
	address := uint64(reflect.ValueOf(TestNames).Pointer())
	r := &rows{names: n}

	symbol := lookedUp(t, r, &file, nil, address)
	require.Contains(t, symbol.Name, "TestNames")

	other := file
	other.Inode++
	symbol = lookedUp(t, r, &other, &wire.Proc{PID: file.Proc}, address)
	require.Empty(t, symbol.Name, "another file of that path")

	symbol, pending := new(rows).lookup(&file, nil, address)
	require.False(t, pending)
	require.Empty(t, symbol.Name)

	n.Close()
	require.Zero(t, opened(t, file.Inode))
}

// The vdso is in no file.
func TestVDSO(t *testing.T) {
	code, err := procfs.VDSO()
	require.NoError(t, err)
	file, err := elf.NewFile(bytes.NewReader(code))
	require.NoError(t, err)
	all, err := file.DynamicSymbols()
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(s elf.Symbol) bool { return strings.HasSuffix(s.Name, "clock_gettime") && s.Size > 1 })
	require.GreaterOrEqual(t, i, 0)
	n := newNames(symbols.NewShared(func() symbols.Options { return symbols.Options{Reader: parse.Here{}} }))
	defer n.Close()
	r := &rows{names: n}
	symbol := lookedUp(t, r, &wire.File{Name: vdso}, nil, all[i].Value+1)
	require.Contains(t, symbol.Name, "clock_gettime")
}

// A row must wait until the names in its stack are read.
func TestRowsWaitForNames(t *testing.T) {
	file, n := ownFile(t)
	t.Cleanup(n.Close)
	address := uint64(reflect.ValueOf(TestNames).Pointer())
	s := &wire.Stack{ID: 7, Frames: []*wire.Frame{{Type: wire.FrameNative, Address: address, Mapping: &wire.Mapping{File: &file}}}}
	i := unwindInstance{Stacks: &Stacks{rows: newRows(false)}, joiner: newJoiner(joinLayout)}
	i.rows.names = n
	begin := time.Now()
	add := func(id uint64, since time.Time) {
		i.joiner.row(record(id, 7, 50, 1), since)
		i.joiner.stack(wire.Unwound{ID: id, Stack: s, Proc: &wire.Proc{PID: file.Proc}}, since)
	}
	add(1, begin.Add(-namesPatience))
	require.Len(t, i.ready(), 1, "it has waited for long enough")
	add(2, begin.Add(time.Hour))
	require.Empty(t, i.ready(), "the file is still to be read")
	add(3, begin.Add(time.Hour))
	require.Eventually(t, func() bool { return len(i.ready()) == 1 }, 20*time.Second, 5*time.Millisecond)
	require.Empty(t, i.joiner.sums)
	frames, _, unnamed := i.rows.framesOf(nil, i.rows.stacks[s.ID], withFiles)
	require.Nil(t, unnamed)
	require.Contains(t, frames[0].Name, "TestNames")

	file.Inode++ // another file, which was not read
	s.ID++
	add(4, begin.Add(time.Hour))
	require.Empty(t, i.ready())
	i.last = true
	require.Len(t, i.ready(), 1, "there is no later packet")
}

// A row's stack must get the names that are read after the row, also after the run.
func TestLateNames(t *testing.T) {
	file, n := ownFile(t)
	address := uint64(reflect.ValueOf(TestNames).Pointer())
	r := newRows(true)
	r.names = n
	first, _, unnamed := r.framesOf(nil, &wire.Stack{Frames: []*wire.Frame{
		{Type: wire.FrameKernel, Function: "vfs_read"},
		{Type: wire.FrameNative, Address: address, Mapping: &wire.Mapping{File: &file}},
	}}, withFiles)
	require.NotNil(t, unnamed)
	require.Equal(t, "vfs_read", first[0].Name)
	require.Empty(t, first[1].Name)
	require.Positive(t, unnamed.Size())
	var later []profile.Frame
	require.Eventually(t, func() bool {
		var pending bool
		later, pending = unnamed.UserFrames(nil)
		return !pending
	}, 20*time.Second, 5*time.Millisecond)
	require.Len(t, later, 1)
	require.Contains(t, later[0].Name, "TestNames")
	n.Close()
	again, pending := unnamed.UserFrames(nil)
	require.False(t, pending)
	require.Equal(t, later, again)
}

// here returns an address in the call of its caller.
//
//go:noinline
func here() uintptr {
	var pcs [1]uintptr
	runtime.Callers(2, pcs[:])
	return pcs[0] - 1
}

// inner is inlined into outer.
func inner() uintptr {
	return here()
}

//go:noinline
func outer() uintptr { return inner() }

// A Go function must have its inlined functions, with the line of the call and the first line.
func TestInlinedGoFunctions(t *testing.T) {
	file, n := ownFile(t)
	t.Cleanup(n.Close)
	address := uint64(outer())
	frame := &wire.Frame{Type: wire.FrameNative, Address: address, Mapping: &wire.Mapping{File: &file}}
	r := &rows{names: n}
	var got []profile.Frame
	require.Eventually(t, func() bool {
		var pending bool
		got, pending = r.frame(nil, frame, false, withFiles)
		require.NotEmpty(t, got)
		return !pending
	}, 20*time.Second, 5*time.Millisecond)
	_, path, line, _ := runtime.Caller(0)
	require.Len(t, got, 2)
	for i, f := range got {
		require.True(t, strings.HasSuffix(f.Name, []string{".inner", ".outer"}[i]), f.Name)
		require.Equal(t, path, f.File)
		require.EqualValues(t, address, f.Address)
		require.Equal(t, profile.FrameGo, f.Type)
		require.InDelta(t, line, f.StartLine, 50)
		require.Equal(t, []int64{1, 0}[i], f.Line-f.StartLine, "the line of the call, from the function's begin")
	}
	require.Less(t, got[0].StartLine, got[1].StartLine)
	require.Equal(t, got[0].Name+"; "+got[1].Name+"; ", r.format([]*wire.Frame{frame}))
}

type wrapped struct{ n int }

// Method gets a wrapper for pointers from Go's compiler.
func (w wrapped) Method() int { return w.n }

// A stack must omit a wrapper from Go's compiler between two functions. As the innermost frame, it stays, because the next frame
// is not its caller before and after it has a frame of its own.
func TestWrappers(t *testing.T) {
	file, n := ownFile(t)
	t.Cleanup(n.Close)
	wrapper := &wire.Frame{
		Type: wire.FrameNative, Address: uint64(reflect.TypeFor[*wrapped]().Method(0).Func.Pointer()), Mapping: &wire.Mapping{File: &file},
	}
	r := &rows{names: n, kernel: func() *stack.Kernel { return stack.NewKernel(stack.KernelOptions{KeepTracing: true}) }}
	lookedUp(t, r, &file, nil, wrapper.Address)
	read, work := &wire.Frame{Type: wire.FrameKernel, Function: "vfs_read"}, &wire.Frame{Type: wire.FramePython, Function: "work"}
	names := func(frames ...*wire.Frame) (list []string) {
		got, _, _ := r.framesOf(nil, &wire.Stack{Frames: frames}, withFiles)
		for _, f := range got {
			list = append(list, f.Name[strings.LastIndexByte(f.Name, '/')+1:])
		}
		return list
	}
	require.Equal(t, []string{"vfs_read", "work", "work"}, names(read, work, wrapper, work))
	require.Equal(t, []string{"vfs_read", "unwinder.(*wrapped).Method", "work"}, names(read, wrapper, work))
	require.Equal(t, []string{"unwinder.(*wrapped).Method", "work"}, names(wrapper, work))
	require.Equal(t, []string{"vfs_read", "work", "unwinder.(*wrapped).Method"}, names(read, work, wrapper))
}
