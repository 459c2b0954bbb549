//go:build e2e

package gadgets

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	log "github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// allocating is the user of the programs of test/vm/guest.
const allocating = 54321

// TestInspektorGadgetsProbes makes the unchanged programs of Inspektor Gadget's trace_malloc call the unwinder from user probes. It
// joins the stacks by the IDs in their events. Inspektor Gadget itself attaches these programs only on kernels with kprobes, where
// test/vm runs it. Programs in C without frame pointers and in Python allocate 60, 30 and 10 % of their bytes in three functions.
func TestInspektorGadgetsProbes(t *testing.T) {
	igtest.NeedRoot(t)
	program := filepath.Join(t.TempDir(), "shares")
	igtest.Output(t, "gcc", "-O2", "-fomit-frame-pointer", "-o", program, "../vm/guest/shares.c")
	commands := map[string]*exec.Cmd{"C": exec.Command(program), "Python": exec.Command("/usr/bin/python3", "../vm/guest/shares.py")}
	libraries := map[string]int{}
	for name, cmd := range commands {
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		libraries[name] = cmd.Process.Pid
	}

	own, err := os.Executable()
	require.NoError(t, err)
	// A program looks for the unwinder in its own folder.
	beside := filepath.Join(filepath.Dir(own), unwinder.Program)
	built, err := filepath.Abs(igtest.Built(t, igtest.Bin, unwinder.Program))
	require.NoError(t, err)
	if err := os.Symlink(built, beside); !errors.Is(err, os.ErrExist) {
		require.NoError(t, err)
	}
	if _, err := os.Stat("/sys/kernel/tracing/events"); err != nil { // ig mounts it itself
		require.NoError(t, unix.Mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount("/sys/kernel/tracing", unix.MNT_DETACH) })
	}
	broker := unwinder.New(log.StandardLogger())
	ids, err := broker.OtelIDs()
	require.NoError(t, err)
	stacks, err := broker.Subscribe(t.Context(), unwinder.Settings{Chains: wire.ChainOtelKprobe.String(), Languages: "all"})
	require.NoError(t, err)
	defer stacks.Close()

	_, err = igtest.BuildUpstream(t, "trace_malloc")
	require.NoError(t, err)
	spec := programsOf(t, filepath.Join(filepath.Dir(os.Getenv(igtest.Gadgets)), "ig-gadgets", "trace_malloc.tar"))
	for name, value := range map[string]any{"collect_ustack": true, "collect_otel_stack": true, "targ_uid": uint32(allocating)} {
		require.NoError(t, spec.Variables[name].Set(value))
	}
	spec.Maps["ig_build_id"].MaxEntries = 1
	var event *btf.Struct
	require.NoError(t, spec.Types.TypeByName("event", &event))
	id, size, operation := offsetOf(t, event, "ustack", "otel_correlation_id"), offsetOf(t, event, "size"), offsetOf(t, event, "operation_raw")
	programs, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"otel_generic_params": ids}})
	require.NoError(t, err)
	defer programs.Close()
	require.NoError(t, stacks.Serve(wire.ChainOtelKprobe, programs.Maps["otel_tc_kprobe"]))
	events, err := ringbuf.NewReader(programs.Maps["events"])
	require.NoError(t, err)
	defer events.Close()
	c, err := link.OpenExecutable(libc(t, libraries["C"]))
	require.NoError(t, err)
	for _, pid := range libraries {
		for _, function := range []string{"malloc", "calloc", "free"} {
			on, err := c.Uprobe(function, programs.Programs["trace_uprobe_"+function], &link.UprobeOptions{PID: pid})
			require.NoError(t, err)
			defer on.Close()
			if function != "free" {
				off, err := c.Uretprobe(function, programs.Programs["trace_uretprobe_"+function], &link.UprobeOptions{PID: pid})
				require.NoError(t, err)
				defer off.Close()
			}
		}
	}

	type allocation struct {
		id   uint64
		size int64
	}
	var allocations []allocation
	unwound := map[uint64]wire.Unwound{}
	var record ringbuf.Record
	// First it waits until the programs are known. From then on, it counts.
	for end, counting := time.Now().Add(2*time.Minute), false; len(allocations) < 600; {
		require.True(t, time.Now().Before(end), "%d allocations", len(allocations))
		events.SetDeadline(time.Now().Add(100 * time.Millisecond))
		for err = events.ReadInto(&record); err == nil; err = events.ReadInto(&record) {
			number := binary.NativeEndian.Uint64(record.RawSample[id:])
			if binary.NativeEndian.Uint32(record.RawSample[operation:]) == 1 { // free
				continue
			}
			if counting {
				allocations = append(allocations, allocation{number, int64(binary.NativeEndian.Uint64(record.RawSample[size:]))})
			}
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		seen := map[uint32]bool{}
		for _, u := range receive(stacks, 0) {
			unwound[u.ID] = u
			seen[u.Proc.PID] = true
		}
		counting = counting || len(seen) == len(libraries)
	}
	for _, u := range receive(stacks, 5*time.Second) {
		unwound[u.ID] = u
	}

	symbols := symbolsIn(t, program)
	sums := map[string]map[string]int64{"C": {}, "Python": {}}
	without := 0
	for _, a := range allocations {
		u, ok := unwound[a.id]
		if !ok {
			without++
			continue
		}
		for name, pid := range libraries {
			if int(u.Proc.PID) != pid {
				continue
			}
			sums[name]["all"] += a.size
			var text strings.Builder
			for _, f := range u.Stack.Frames {
				if f.Function == "" && f.Mapping != nil && f.Mapping.File.Name == filepath.Base(program) {
					text.WriteString(symbols(f.Address) + "; ")
				} else {
					text.WriteString(f.Function + "; ")
				}
			}
			for _, function := range []string{"heavy", "light", "rest"} {
				if u.Stack.Abort == 0 && strings.Contains(text.String(), function+"; main; ") {
					sums[name][function] += a.size
				}
			}
		}
	}
	t.Logf("%d allocations, %d of them without a stack: %v; of all events %v", len(allocations), without, sums, broker.OtelResults())
	require.LessOrEqual(t, without, len(allocations)/20)
	for name, of := range sums {
		whole := of["heavy"] + of["light"] + of["rest"]
		require.GreaterOrEqual(t, float64(whole), 0.93*float64(of["all"]), name)
		for function, want := range map[string]float64{"heavy": 60, "light": 30, "rest": 10} {
			require.InDelta(t, want, 100*float64(of[function])/float64(whole), 3, "%s: %s", name, function)
		}
	}
}

// receive returns the stacks that have arrived or arrive within a time limit.
func receive(s *unwinder.Subscription, wait time.Duration) (all []wire.Unwound) {
	for end := time.After(wait); ; {
		select {
		case b := <-s.C:
			all = append(all, b...)
			continue
		default:
		}
		if wait == 0 {
			return all
		}
		select {
		case b := <-s.C:
			all = append(all, b...)
		case <-end:
			return all
		}
	}
}

// libc is the C library that a process has mapped.
func libc(t *testing.T, pid int) string {
	t.Helper()
	var path string
	require.Eventually(t, func() bool {
		maps, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
		for line := range strings.Lines(string(maps)) {
			if f := strings.Fields(line); len(f) == 6 && strings.HasPrefix(filepath.Base(f[5]), "libc.so") {
				path = f[5]
			}
		}
		return path != ""
	}, time.Minute, 10*time.Millisecond)
	return path
}

// symbolsIn finds the functions of a file.
func symbolsIn(t *testing.T, path string) func(address uint64) string {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.Symbols()
	require.NoError(t, err)
	return func(address uint64) string {
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Value <= address && address < s.Value+s.Size {
				return s.Name
			}
		}
		return ""
	}
}

// offsetOf returns the offset of a member of a struct.
func offsetOf(t *testing.T, s *btf.Struct, path ...string) uint32 {
	t.Helper()
	for _, m := range s.Members {
		if m.Name != path[0] {
			continue
		}
		if len(path) == 1 {
			return m.Offset.Bytes()
		}
		inner, ok := btf.UnderlyingType(m.Type).(*btf.Struct)
		require.True(t, ok, path[0])
		return m.Offset.Bytes() + offsetOf(t, inner, path[1:]...)
	}
	t.Fatalf("%s has no member %s", s.Name, path[0])
	return 0
}

// programsOf returns the eBPF programs for this machine in an image's archive.
func programsOf(t *testing.T, archive string) *ebpf.CollectionSpec {
	t.Helper()
	type descriptor struct {
		MediaType, Digest string
		Platform          struct{ Architecture string }
	}
	files := blobs(t, archive)
	for _, content := range files {
		var index struct{ Manifests []descriptor }
		_ = json.Unmarshal(content, &index)
		for _, m := range index.Manifests {
			var manifest struct{ Layers []descriptor }
			if m.Platform.Architecture != runtime.GOARCH || json.Unmarshal(files[m.Digest], &manifest) != nil {
				continue
			}
			for _, layer := range manifest.Layers {
				if !strings.Contains(layer.MediaType, "ebpf") {
					continue
				}
				spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(files[layer.Digest]))
				require.NoError(t, err)
				return spec
			}
		}
	}
	t.Fatalf("%s has no programs for %s", archive, runtime.GOARCH)
	return nil
}
