package otelprofiles

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// slow is a namer that uses all its time. It knows the name of address 1, and the file of address 2.
type slow struct {
	clock   *time.Time
	waits   []time.Duration
	process procmap.Process
	seen    uint64
}

func (s *slow) ResolveWithin(dst []names.Frame, wait time.Duration, p procmap.Process, seen uint64, addrs []uint64) []names.Frame {
	*s.clock = s.clock.Add(wait)
	s.waits, s.process, s.seen = append(s.waits, wait), p, seen
	for _, addr := range addrs {
		f := names.Frame{State: names.Gone}
		switch addr {
		case 1:
			f = names.Frame{Symbol: symtab.Symbol{Name: "work"}}
		case 2:
			f = names.Frame{State: names.NoSymbols, File: &procmap.File{Path: "/usr/lib/libx.so.1"}}
		}
		dst = append(dst, f)
	}
	return dst
}

func TestResolver(t *testing.T) {
	clock := time.Unix(1000, 0)
	known := &slow{clock: &clock}
	wait := 20 * time.Millisecond
	r := &resolverInstance{names: known, last: true, wait: wait, left: waitsPerSecond * wait, now: func() time.Time { return clock }}
	task := symbolizer.Task{Tgid: 7, BaseAddrHash: 9, EventBootTimestamp: 11, Exe: symbolizer.SymbolTableKey{Ino: 5, MtimeSec: 3, MtimeNsec: 4}}
	queries := []symbolizer.StackItemQuery{{Addr: 1}, {Addr: 2}, {Addr: 3}}
	got, err := r.Resolve(task, queries, make([]symbolizer.StackItemResponse, 3))
	require.NoError(t, err)
	want := []symbolizer.StackItemResponse{{Found: true, Symbol: "work"}, {Found: true, Symbol: "[libx.so.1]"}, {}}
	require.Equal(t, want, got, "an answer to each, which replaces all others")
	require.Equal(t, procmap.Process{PID: 7, ExeInode: 5, ExeModified: 3e9 + 4, Space: 9}, known.process)
	require.EqualValues(t, 11, known.seen)

	// The total wait for the stacks of each second must be limited.
	for range 50 {
		_, _ = r.Resolve(task, queries, make([]symbolizer.StackItemResponse, 3))
	}
	total := time.Duration(0)
	for _, w := range known.waits {
		require.LessOrEqual(t, w, wait)
		require.GreaterOrEqual(t, w, time.Duration(0))
		total += w
	}
	require.Less(t, total, 2*waitsPerSecond*wait)
	clock = clock.Add(time.Second)
	_, _ = r.Resolve(task, queries, make([]symbolizer.StackItemResponse, 3))
	require.Equal(t, wait, known.waits[len(known.waits)-1], "there is time again")

	for range 10 { // uses up the limit again
		_, _ = r.Resolve(task, queries, make([]symbolizer.StackItemResponse, 3))
	}
	require.Less(t, known.waits[len(known.waits)-1], wait)
	for _, quiet := range []time.Duration{95 * time.Second, 120 * time.Second, time.Hour, 1000 * time.Hour} {
		clock = clock.Add(quiet)
		before := len(known.waits)
		for range 3 {
			_, _ = r.Resolve(task, queries, make([]symbolizer.StackItemResponse, 3))
		}
		for _, w := range known.waits[before:] {
			require.Equal(t, wait, w, "after %s without a row", quiet)
		}
		require.LessOrEqual(t, r.left, waitsPerSecond*wait)
	}

	// The resolver must leave unknown addresses to later resolvers.
	r.last = false
	responses := make([]symbolizer.StackItemResponse, 3)
	got, err = r.Resolve(task, queries, responses)
	require.NoError(t, err)
	require.Nil(t, got)
	require.Equal(t, []symbolizer.StackItemResponse{{Found: true, Symbol: "work"}, {}, {}}, responses)
}

// Inspektor Gadget asks this resolver before symtab. If a process has exited, symtab's error would drop all names.
func TestResolverIsRegistered(t *testing.T) {
	if prefix := igrun.Prefix(); prefix != nil && os.Geteuid() == 0 {
		args := slices.Concat(prefix, []string{os.Args[0], "-test.run", "^" + t.Name() + "$", "-test.v"})
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	s, err := symbolizer.NewSymbolizer(symbolizer.SymbolizerOptions{UseSymtab: true, Context: t.Context()})
	if err != nil && os.Geteuid() != 0 {
		t.Skipf("Inspektor Gadget's own resolver does not start here: %v", err)
	}
	require.NoError(t, err)
	defer s.Close()
	got, err := s.Resolve(symbolizer.Task{Tgid: 1 << 31, Exe: symbolizer.SymbolTableKey{Ino: 1}}, []symbolizer.StackItemQuery{{Addr: 0x1000}})
	require.NoError(t, err)
	require.Equal(t, []symbolizer.StackItemResponse{{}}, got)
	r, err := resolver{registered}.NewInstance(symbolizer.SymbolizerOptions{})
	require.NoError(t, err)
	require.Nil(t, r, "nobody has asked for it")
}
