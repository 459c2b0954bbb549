package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// The committed objects match the source and the profiler's headers.
func TestEntryObjects(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "bpf/build.sh", dir).CombinedOutput(); err != nil {
		if _, missing := exec.LookPath("clang"); missing != nil {
			t.Skip("there is no clang: make unwinder-bpf installs it")
		}
		t.Fatalf("bpf/build.sh: %v\n%s", err, out)
	}
	read := func(dir, name string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return content
	}
	same := func(name string) bool { return bytes.Equal(read(dir, name), read("bpf", name)) }
	assert.True(t, same("module_version.txt"), "the objects are for another version of the profiler: run make unwinder-bpf")
	assert.True(t, same("sources.txt"), "the objects are of other sources: run make unwinder-bpf")
	if !same("compiler.txt") {
		t.Logf("the objects were made by %sand cannot be compared here", read("bpf", "compiler.txt"))
		return
	}
	for _, name := range []string{"entry_amd64.o", "entry_arm64.o"} {
		assert.True(t, same(name), "%s is not what its source makes: run make unwinder-bpf", name)
	}
}

// The object contains everything that the programs refer to, so the loader can replace it with the profiler's.
func TestEntryReferences(t *testing.T) {
	for _, name := range []string{"entry_amd64.o", "entry_arm64.o"} {
		content, err := os.ReadFile(filepath.Join("bpf", name))
		require.NoError(t, err)
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(content))
		require.NoError(t, err)
		for _, c := range chains {
			p := spec.Programs[c.entry]
			require.NotNil(t, p, "%s has no program %s", name, c.entry)
			for _, ins := range p.Instructions {
				if to := ins.Reference(); to != "" && !ins.IsLoadFromMap() && !ins.IsFunctionCall() {
					t.Errorf("%s: %s refers to %s, which it does not have", name, c.entry, to)
				}
			}
		}
	}
}

// The kernel accepts the entry programs. It limits their stacks, because they make tail calls.
func TestEntryLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to load eBPF programs")
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(entryObject))
	require.NoError(t, err)
	// Without an origin, most of the code is unreachable, and the verifier skips it.
	require.NoError(t, spec.Variables["gadgets_origin"].Set(uint16(1)))
	for _, c := range chains {
		one := spec.Copy() // programs of different types cannot share an array of programs
		for name := range one.Programs {
			if name != c.entry {
				delete(one.Programs, name)
			}
		}
		loaded, err := ebpf.NewCollection(one)
		if assert.NoErrorf(t, err, "%s: %+v", c.entry, err) { // %+v prints the verifier's log
			loaded.Close()
		}
	}
}

// A chain that is being loaded when the program ends is not reported as refused.
func TestServeMoreAtEnd(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(ends[0]) }()
	ctx, end := context.WithCancel(t.Context())
	loads := 0
	load := func([]wire.ChainKind) (wire.Entries, error) {
		if loads++; loads == 2 {
			end()
		}
		return wire.Entries{Refused: map[wire.ChainKind]string{}}, errors.New("it is closed")
	}
	for range 2 {
		require.NoError(t, wire.AskChains(ends[0], []wire.ChainKind{wire.ChainRawTracepoint}))
	}
	// Otherwise it would wait for a third request.
	require.NoError(t, unix.Shutdown(ends[0], unix.SHUT_WR))
	serveMore(ctx, ends[1], load, slog.New(slog.DiscardHandler))
	_ = unix.Close(ends[1])
	sent, err := wire.ReceiveEntries(ends[0])
	require.NoError(t, err)
	require.Equal(t, "it is closed", sent.Refused[wire.ChainRawTracepoint])
	_, err = wire.ReceiveEntries(ends[0])
	require.ErrorIs(t, err, io.EOF)
}

// A refused chain leaves no descriptor open, at whatever step it was refused. It is loaded when it is requested again. The test
// runs in a separate process with the limits.
func TestRefusedChain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to load eBPF programs")
	}
	const child = "TEST_REFUSED_CHAIN"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRefusedChain$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	debug.SetGCPercent(-1) // finalizers would close descriptors
	require.NoError(t, liftMemlock())
	c := config{chains: []wire.ChainKind{wire.ChainPerfEvent}, languages: "native"}
	languages := c.interpreters()
	s := newSampler(wire.NewWriter(io.Discard), c, &counters{}, slog.New(slog.DiscardHandler))
	defer s.close()
	profiler, err := newTracer(t.Context(), c, languages, s)
	require.NoError(t, err)
	defer profiler.Close()
	g := &gadgetChains{kinds: c.chains, languages: languages, shared: map[string]*ebpf.Map{}}
	for name, size := range map[string]uintptr{"slots": unsafe.Sizeof(wire.Slot{}), "otel": unsafe.Sizeof(wire.Otel{}), "otel_ids": 8} {
		g.shared[name], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(wire.Slots)})
		require.NoError(t, err)
		defer g.shared[name].Close()
	}
	require.NoError(t, g.enable(t.Context(), profiler))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	wanted := []wire.ChainKind{wire.ChainRawTracepoint}
	before, free := openDescriptors(t)
	refusals := map[string]bool{}
	for room := uint64(0); ; room++ { // number of free descriptors
		few := limit
		few.Cur = free + room
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		loaded, err := g.load(wanted)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if len(loaded.Descriptors) > 0 {
			break
		}
		refusals[fmt.Sprint(loaded.Refused, err)] = true
		after, _ := openDescriptors(t)
		require.Equal(t, before, after, "room for %d: %v, %v", room, loaded.Refused, err)
		require.Less(t, room, uint64(200), "it is never loaded: %v, %v", loaded.Refused, err)
	}
	assert.GreaterOrEqual(t, len(refusals), 3, "refused only at %v", refusals)
}

// openDescriptors returns this process's eBPF descriptors, and the lowest free descriptor.
func openDescriptors(t *testing.T) (open []string, free uint64) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	used := map[string]bool{}
	for _, e := range entries {
		used[e.Name()] = true
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "bpf") {
			open = append(open, e.Name()+" "+to)
		}
	}
	for used[strconv.FormatUint(free, 10)] {
		free++
	}
	return open, free
}

func TestCheckVersion(t *testing.T) {
	want := strings.TrimSpace(entryVersion)
	with := func(m ...*debug.Module) error { return checkVersion(&debug.BuildInfo{Deps: m}) }
	assert.NoError(t, with(&debug.Module{Path: "other", Version: "v1"}, &debug.Module{Path: profilerModule, Version: want}))
	for _, m := range []*debug.Module{
		{Path: profilerModule, Version: want + "1"},
		{Path: profilerModule, Version: want, Replace: &debug.Module{Path: "fork", Version: "v9"}},
		{Path: "other"},
	} {
		assert.Error(t, with(m), "%+v is taken", m)
	}
}
