package names

import (
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

// Code that a JIT compiler makes after the perf map was read gets its name from the next read. Code has no name if a read after
// it was seen does not find it.
func TestGeneratedLater(t *testing.T) {
	n := newNamer(t)
	t.Cleanup(n.Close)
	page := os.Getpagesize()
	code, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(code)) })
	first := uint64(reflect.ValueOf(code).Pointer())
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	f, err := os.Create(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close(); os.Remove(path) })
	made := func(addr uint64, name string) {
		_, err := fmt.Fprintf(f, "%x %x %s\n", addr, page, name)
		require.NoError(t, err)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/exe", &st))
	p := procmap.Process{PID: uint32(os.Getpid()), ExeInode: st.Ino, Space: 1}
	resolve := func(addr uint64) (Frame, bool) {
		frames, pending := n.Resolve(nil, p, procfs.SinceBoot(), []uint64{addr})
		return frames[0], pending
	}

	made(first, "early")
	require.Eventually(t, func() bool { f, pending := resolve(first); return !pending && f.Symbol.Name == "early" }, 20*time.Second, time.Millisecond)
	second := first + uint64(page)
	unnamed, pending := resolve(second)
	require.True(t, pending, "the map was read before this was seen")
	require.Equal(t, Generated, unnamed.State, "what it is in is known already")
	begin := time.Now()
	n.ResolveWithin(nil, time.Hour, p, procfs.SinceBoot(), []uint64{second})
	require.Less(t, time.Since(begin), time.Minute, "nobody can say when the map grows")
	made(second, "late")
	seen := procfs.SinceBoot()
	require.Eventually(t, func() bool {
		frames, pending := n.Resolve(nil, p, seen, []uint64{second, second + uint64(page) + 1})
		return !pending && frames[0].Symbol.Name == "late" && frames[1].State == Generated
	}, 20*time.Second, time.Millisecond)

	// Some tools remove the map and write another one.
	next := path + ".new"
	require.NoError(t, os.WriteFile(next, fmt.Appendf(nil, "%x %x newer\n", first, page), 0o600))
	require.NoError(t, os.Rename(next, path))
	require.Eventually(t, func() bool { f, pending := resolve(first); return !pending && f.Symbol.Name == "newer" }, 20*time.Second, 10*time.Millisecond)
}
