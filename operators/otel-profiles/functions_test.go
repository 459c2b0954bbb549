package otelprofiles

import (
	"os"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFunctions reads the symbols of this process. Where the namespaces of process 1 cannot be read,
// Inspektor Gadget's symbolizer cannot be had, and the error must say so.
func TestFunctions(t *testing.T) {
	f, err := newFunctions(t.Context())
	if _, statErr := os.Stat("/proc/1/ns/pid"); statErr != nil {
		require.ErrorContains(t, err, "/proc/1/ns/pid")
		all, err := symbolizer.NewSymbolizer(symbolizer.SymbolizerOptions{})
		require.NoError(t, err)
		f = &functions{all: all}
	} else {
		require.NoError(t, err)
		var exe, ns unix.Stat_t
		require.NoError(t, unix.Stat("/proc/self/exe", &exe))
		require.NoError(t, unix.Stat("/proc/self/ns/pid", &ns))
		task := symbolizer.Task{
			Tgid: uint32(os.Getpid()), PidNumbers: []symbolizer.PidNumbers{{Pid: uint32(os.Getpid()), PidNsId: uint32(ns.Ino)}},
			Exe: symbolizer.SymbolTableKey{
				Major: unix.Major(exe.Dev), Minor: unix.Minor(exe.Dev), Ino: exe.Ino, MtimeSec: exe.Mtim.Sec, MtimeNsec: uint32(exe.Mtim.Nsec),
			},
		}
		names, err := f.Resolve(task, []symbolizer.StackItemQuery{{Addr: 1}}) // "go test" leaves out the symbols
		require.NoError(t, err)
		require.Len(t, names, 1)
		require.False(t, names[0].Found)
	}
	f.Close()
	f.Close()
	names, err := f.Resolve(symbolizer.Task{}, []symbolizer.StackItemQuery{{Addr: 1}})
	require.NoError(t, err)
	require.Empty(t, names)
}
