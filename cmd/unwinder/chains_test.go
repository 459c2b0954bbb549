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
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
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
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	same := func(name string) bool { return bytes.Equal(read(dir, name), read("bpf", name)) }
	if !same("module_version.txt") {
		t.Error("the objects are for another version of the profiler: run make unwinder-bpf")
	}
	if !same("sources.txt") {
		t.Error("the objects are of other sources: run make unwinder-bpf")
	}
	if !same("compiler.txt") {
		t.Logf("the objects were made by %sand cannot be compared here", read("bpf", "compiler.txt"))
		return
	}
	for _, name := range []string{"entry_amd64.o", "entry_arm64.o"} {
		if !same(name) {
			t.Errorf("%s is not what its source makes: run make unwinder-bpf", name)
		}
	}
}

// The object contains everything that the programs refer to, so the loader can replace it with the profiler's.
func TestEntryReferences(t *testing.T) {
	for _, name := range []string{"entry_amd64.o", "entry_arm64.o"} {
		content, err := os.ReadFile(filepath.Join("bpf", name))
		if err != nil {
			t.Fatal(err)
		}
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chains {
			p := spec.Programs[c.entry]
			if p == nil {
				t.Fatalf("%s has no program %s", name, c.entry)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	// Without an origin, most of the code is unreachable, and the verifier skips it.
	if err := spec.Variables["gadgets_origin"].Set(uint16(1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		one := spec.Copy() // programs of different types cannot share an array of programs
		for name := range one.Programs {
			if name != c.entry {
				delete(one.Programs, name)
			}
		}
		loaded, err := ebpf.NewCollection(one)
		if err != nil {
			t.Errorf("%s: %+v", c.entry, err)
			continue
		}
		loaded.Close()
	}
}

// A chain that is being loaded when the program ends is not reported as refused.
func TestServeMoreAtEnd(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := wire.AskChains(ends[0], []wire.ChainKind{wire.ChainRawTracepoint}); err != nil {
			t.Fatal(err)
		}
	}
	// Otherwise it would wait for a third request.
	if err := unix.Shutdown(ends[0], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	serveMore(ctx, ends[1], load, slog.New(slog.DiscardHandler))
	_ = unix.Close(ends[1])
	sent, err := wire.ReceiveEntries(ends[0])
	if err != nil || sent.Refused[wire.ChainRawTracepoint] != "it is closed" {
		t.Fatalf("%+v, %v", sent, err)
	}
	if sent, err := wire.ReceiveEntries(ends[0]); !errors.Is(err, io.EOF) {
		t.Fatalf("%+v, %v", sent, err)
	}
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
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	debug.SetGCPercent(-1) // finalizers would close descriptors
	if err := liftMemlock(); err != nil {
		t.Fatal(err)
	}
	c := config{chains: []wire.ChainKind{wire.ChainPerfEvent}, languages: "native"}
	languages := c.interpreters()
	s := newSampler(wire.NewWriter(io.Discard), c, &counters{}, slog.New(slog.DiscardHandler))
	defer s.close()
	profiler, err := newTracer(t.Context(), c, languages, s)
	if err != nil {
		t.Fatal(err)
	}
	defer profiler.Close()
	g := &gadgetChains{kinds: c.chains, languages: languages, shared: map[string]*ebpf.Map{}}
	for name, size := range map[string]uintptr{"slots": unsafe.Sizeof(wire.Slot{}), "otel": unsafe.Sizeof(wire.Otel{}), "otel_ids": 8} {
		if g.shared[name], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(wire.Slots)}); err != nil {
			t.Fatal(err)
		}
		defer g.shared[name].Close()
	}
	if err := g.enable(t.Context(), profiler); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	wanted := []wire.ChainKind{wire.ChainRawTracepoint}
	before, free := openDescriptors(t)
	refusals := map[string]bool{}
	for room := uint64(0); ; room++ { // number of free descriptors
		few := limit
		few.Cur = free + room
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		loaded, err := g.load(wanted)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if len(loaded.Descriptors) > 0 {
			break
		}
		refusals[fmt.Sprint(loaded.Refused, err)] = true
		if after, _ := openDescriptors(t); !slices.Equal(before, after) {
			t.Fatalf("room for %d: open are %v, before %v: %v, %v", room, after, before, loaded.Refused, err)
		}
		if room == 200 {
			t.Fatalf("it is never loaded: %v, %v", loaded.Refused, err)
		}
	}
	if len(refusals) < 3 {
		t.Errorf("refused only at %v", refusals)
	}
}

// openDescriptors returns this process's eBPF descriptors, and the lowest free descriptor.
func openDescriptors(t *testing.T) (open []string, free uint64) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := with(&debug.Module{Path: "other", Version: "v1"}, &debug.Module{Path: profilerModule, Version: want}); err != nil {
		t.Error(err)
	}
	for _, m := range []*debug.Module{
		{Path: profilerModule, Version: want + "1"},
		{Path: profilerModule, Version: want, Replace: &debug.Module{Path: "fork", Version: "v9"}},
		{Path: "other"},
	} {
		if with(m) == nil {
			t.Errorf("%+v is taken", m)
		}
	}
}
