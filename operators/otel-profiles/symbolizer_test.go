package otelprofiles

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fragile is a symbolizer that does not bear two look-ups at once.
type fragile struct {
	t       *testing.T
	busy    atomic.Bool
	asked   atomic.Int64
	closed  atomic.Int64
	waiting chan struct{} // if not nil, a look-up waits until it is closed
	begun   chan struct{}
}

func (f *fragile) Resolve(_ symbolizer.Task, queries []symbolizer.StackItemQuery) ([]symbolizer.StackItemResponse, error) {
	if f.busy.Swap(true) {
		f.t.Error("two look-ups at once")
	}
	defer f.busy.Store(false)
	f.asked.Add(1)
	if f.waiting != nil {
		close(f.begun)
		<-f.waiting
	}
	return make([]symbolizer.StackItemResponse, len(queries)), nil
}

func (f *fragile) Close() { f.closed.Add(1) }

var oneQuery = []symbolizer.StackItemQuery{{Addr: 1}}

func TestSymbolizer(t *testing.T) {
	f := &fragile{t: t}
	made := 0
	s := &lazySymbolizer{make: func() (closingSymbolizer, error) { made++; return f, nil }}
	require.Zero(t, made, "not before it is needed")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				if names, err := s.Resolve(symbolizer.Task{}, oneQuery); err != nil || len(names) != 1 {
					t.Errorf("%v, %v", names, err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, made)
	require.EqualValues(t, 400, f.asked.Load())
	s.Close()
	s.Close()
	require.EqualValues(t, 1, f.closed.Load())
	_, err := s.Resolve(symbolizer.Task{}, oneQuery)
	require.ErrorIs(t, err, errSymbolizerClosed)
}

func TestSymbolizerNeverUsed(t *testing.T) {
	s := &lazySymbolizer{make: func() (closingSymbolizer, error) { panic("not needed") }}
	s.Close()
	_, err := s.Resolve(symbolizer.Task{}, oneQuery)
	require.ErrorIs(t, err, errSymbolizerClosed)
}

// TestSymbolizerThatHangs has a look-up in a file system that does not answer: closing does not wait.
func TestSymbolizerThatHangs(t *testing.T) {
	f := &fragile{t: t, waiting: make(chan struct{}), begun: make(chan struct{})}
	s := &lazySymbolizer{make: func() (closingSymbolizer, error) { return f, nil }}
	var one sync.WaitGroup
	one.Go(func() { _, _ = s.Resolve(symbolizer.Task{}, oneQuery) })
	<-f.begun
	s.Close()
	close(f.waiting)
	one.Wait()
	require.EqualValues(t, 1, f.closed.Load())
}

func TestSymbolizerThatCannotBeMade(t *testing.T) {
	reason := errors.New("no /proc")
	s := &lazySymbolizer{make: func() (closingSymbolizer, error) { return nil, reason }}
	for range 2 {
		_, err := s.Resolve(symbolizer.Task{}, oneQuery)
		require.ErrorIs(t, err, reason)
	}
	s.Close()
}

// TestSymbolTables reads the symbols of this process. Where the namespaces of process 1 cannot be read,
// Inspektor Gadget's symbolizer cannot be had, and the error must say so.
func TestSymbolTables(t *testing.T) {
	s := newSymbolizer(t.Context())
	defer s.Close()
	var exe, ns unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &exe))
	require.NoError(t, unix.Stat("/proc/self/ns/pid", &ns))
	task := symbolizer.Task{
		Tgid: uint32(os.Getpid()), PidNumbers: []symbolizer.PidNumbers{{Pid: uint32(os.Getpid()), PidNsId: uint32(ns.Ino)}},
		Exe: symbolizer.SymbolTableKey{
			Major: unix.Major(exe.Dev), Minor: unix.Minor(exe.Dev), Ino: exe.Ino, MtimeSec: exe.Mtim.Sec, MtimeNsec: uint32(exe.Mtim.Nsec),
		},
	}
	names, err := s.Resolve(task, oneQuery)
	if _, statErr := os.Stat("/proc/1/ns/pid"); statErr != nil {
		require.ErrorContains(t, err, "/proc/1/ns/pid")
		return
	}
	require.NoError(t, err)
	require.Len(t, names, 1, "a resolver is registered")
	require.False(t, names[0].Found) // "go test" leaves out the symbols, and nothing is at 1
}
