package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// The committed objects are those that the source and the profiler's headers make.
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

// All that the programs refer to is in the object, so that the loader can put the profiler's own in its place.
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

// The kernel takes the entry programs: their stacks are bounded, as they make tail calls.
func TestEntryLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to load eBPF programs")
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(entryObject))
	if err != nil {
		t.Fatal(err)
	}
	// Without an origin most of the code is never reached, and not looked at.
	if err := spec.Variables["gadgets_origin"].Set(uint16(1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		one := spec.Copy() // programs of several types cannot share an array of programs
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

// A chain that is being loaded when the program ends is not said to be refused.
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
	// Without a third question it would wait for one.
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
