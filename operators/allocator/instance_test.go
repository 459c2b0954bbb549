package allocator

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/operators/captures"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestParameters(t *testing.T) {
	values := func(cost, everywhere string) api.ParamValues {
		return api.ParamValues{ParamMaxCost: cost, ParamEverywhere: everywhere}
	}
	for _, text := range []string{"", "0", "-1", "5%", "1e3", "65536"} {
		_, err := operator{}.InstantiateDataOperator(exampleContext(t, nil), values(text, "false"))
		require.EqualError(t, err, fmt.Sprintf(`parameter "max-cost": got %q, expected a percentage of at least 1`, text))
	}
	_, err := operator{}.InstantiateDataOperator(exampleContext(t, nil), values("5", "maybe"))
	require.EqualError(t, err, `parameter "everywhere": got "maybe", expected true or false`)
	got, err := operator{}.InstantiateDataOperator(exampleContext(t, nil, gadgetcontext.WithIsClient(true)), values("", ""))
	require.NoError(t, err)
	require.Nil(t, got, "on a client")
}

// fakeControl replaces the Control of the operator captures.
type fakeControl struct{}

func (fakeControl) Always() error { return nil }

func (fakeControl) Open(float64) error { return nil }

func (fakeControl) Close(float64) error { return nil }

func (fakeControl) Know(uint32) {}

// exampleRun returns a run for one process. Its maps and programs resemble the gadget's.
func exampleRun(t *testing.T, pid uint32, without string, options ...gadgetcontext.Option) (*instance, *gadgetcontext.GadgetContext) {
	t.Helper()
	gadgetCtx := exampleContext(t, api.ParamValues{"pid": fmt.Sprint(pid)}, options...)
	got, err := operator{}.InstantiateDataOperator(gadgetCtx, api.ParamValues{ParamMaxCost: "5", ParamEverywhere: "false"})
	require.NoError(t, err)
	i := got.(*instance)
	i.control = fakeControl{}
	require.NoError(t, i.PreStart(gadgetCtx))
	if without != captures.ControlVar {
		gadgetCtx.SetVar(captures.ControlVar, fakeControl{})
	}
	for _, spec := range []*ebpf.MapSpec{
		{Name: "allocator_programs", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: uint32(allocators.Programs)},
		{Name: "newcomers", Type: ebpf.RingBuf, MaxEntries: 1 << 16},
		{Name: "allocator_counts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8 * (uint32(allocators.Programs) + 1), MaxEntries: mostProcesses + 1},
		{Name: "allocator_processes", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: mostProcesses},
	} {
		if spec.Name == without {
			continue
		}
		m := igtest.Map(t, spec)
		gadgetCtx.SetVar(operators.MapPrefix+spec.Name, m)
		for n := uint32(0); spec.Type == ebpf.ProgramArray && n < uint32(allocators.Programs) && without != fmt.Sprint(n); n++ {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			require.NoError(t, m.Put(n, p))
		}
	}
	i.pacer = &pacer{}
	for name, to := range map[string]**ebpf.Map{"allocator_counts": &i.counts, "allocator_processes": &i.known} {
		v, _ := gadgetCtx.GetVar(operators.MapPrefix + name)
		*to, _ = v.(*ebpf.Map)
	}
	return i, gadgetCtx
}

// A run that cannot start must end and release its resources.
func TestStartFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, without := range []string{"allocator_programs", "newcomers", "allocator_counts", "allocator_processes", captures.ControlVar, "3"} {
		i, gadgetCtx := exampleRun(t, 1<<30, without)
		require.NoError(t, i.Start(gadgetCtx))
		require.Error(t, gadgetCtx.Context().Err(), without)
		require.NoError(t, i.Stop(gadgetCtx))
		require.NoError(t, i.Close(gadgetCtx))
	}
	i, gadgetCtx := exampleRun(t, 1<<30, "")
	require.NoError(t, i.Close(gadgetCtx), "without a start")
}

// A run must attach to its process, and remove all probes at its end.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := newChild(t)
	i, gadgetCtx := exampleRun(t, c.pid(), "")
	require.NoError(t, i.Start(gadgetCtx))
	require.NoError(t, gadgetCtx.Context().Err())
	i.newcomers <- c.pid() // as after an execve
	c.run("pass")
	require.NoError(t, i.Stop(gadgetCtx))
	require.Zero(t, i.probes)
	require.NoError(t, i.Stop(gadgetCtx))
	require.NoError(t, i.Close(gadgetCtx))
	c.end()
}

// If there is no process with the PID, the log must say so.
func TestNobodyThere(t *testing.T) {
	log := &igtest.Buffer{}
	i, gadgetCtx := exampleRun(t, 1<<30, "", gadgetcontext.WithLogger(igtest.Logger(log)))
	require.NoError(t, i.Start(gadgetCtx))
	said := func(line string) bool {
		return strings.HasSuffix(log.String(), "level=warning msg=\"allocator: "+line+"\"\n")
	}
	require.Eventually(t, func() bool { return said("waiting for a process that matches --pid=1073741824 to start") }, time.Minute, time.Millisecond)
	require.NoError(t, i.Stop(gadgetCtx))
	require.True(t, said("nothing was recorded: there was no process that matches --pid=1073741824"), log)

	require.Equal(t, "process in the selected containers", (&filter{uid: anyID, gid: anyID, namespaces: &ebpf.Map{}}).about())
	require.Equal(t, `process that matches --comm="shop" --uid=3 --gid=4`, (&filter{comm: "shop", uid: 3, gid: 4}).about())
}

// When another process gets the PID, the probes must be removed.
func TestUpdate(t *testing.T) {
	c := newChild(t)
	i, gadgetCtx := exampleRun(t, c.pid(), "")
	var err error
	v, _ := gadgetCtx.GetVar(operators.MapPrefix + "allocator_programs")
	i.loaded, err = load(v.(*ebpf.Map))
	require.NoError(t, err)
	defer i.loaded.close()
	i.finder, i.processes, i.attached = exampleFinder(t), map[uint32]*process{}, true
	i.add(c.pid())
	p := i.processes[c.pid()]
	seen := settled(t, i.finder, c.pid())
	i.update(p, seen)
	first := p.files[seen.files[0]]
	require.NotNil(t, first)
	require.Len(t, first, i.probes)
	i.update(p, seen)
	require.Same(t, &first[0], &p.files[seen.files[0]][0], "attached once")
	n := i.probes
	seen.thread = uint32(os.Getpid()) // any existing thread
	i.update(p, seen)
	require.NotSame(t, &first[0], &p.files[seen.files[0]][0], "the thread that they belonged to has ended")
	require.Equal(t, n, i.probes)
	first = p.files[seen.files[0]]
	require.NotNil(t, first)
	seen.start++
	i.update(p, seen)
	require.NotSame(t, &first[0], &p.files[seen.files[0]][0])
	require.Equal(t, n, i.probes)

	// Probes in files that are no longer mapped must be removed.
	i.detachFrom(p)
	clear(p.files)
	for n := range uint64(mostOfOne) {
		p.files[symtab.FileID{Inode: n, MtimeNS: -1}] = []probe{}
	}
	i.update(p, seen)
	require.NotNil(t, p.files[seen.files[0]])
	require.Len(t, p.files, 1)
	require.Equal(t, n, i.probes)
	i.forget(p)
	require.Zero(t, i.probes)
	require.Empty(t, i.processes)

	// The number of probes must be limited.
	i.add(c.pid())
	i.probes = mostProbes
	i.update(i.processes[c.pid()], seen)
	require.Equal(t, mostProbes, i.probes)
	require.True(t, i.warned.probes)
	i.swept = time.Now().Add(time.Hour)
	for pid := range uint32(2 * mostProcesses) {
		i.add(1<<30 + pid)
	}
	require.Len(t, i.processes, mostProcesses)
	require.False(t, i.refused.IsZero())

	// Exited processes must make room.
	i.swept = time.Time{}
	i.add(uint32(os.Getpid()))
	require.Contains(t, i.processes, uint32(os.Getpid()))
	require.Contains(t, i.processes, c.pid())
	require.Len(t, i.processes, 2)
}

// A process that starts at the same time as too many others must be found later.
func TestMissed(t *testing.T) {
	c := newChild(t)
	i, _ := exampleRun(t, c.pid(), "")
	i.newcomers, i.processes = make(chan uint32), map[uint32]*process{}
	now := time.Now()
	i.lookForMissed(now)
	i.lookForMissed(now.Add(lookInterval))
	require.Empty(t, i.processes, "there was none")
	i.handOn(c.pid()) // the channel is full
	i.lookForMissed(now)
	require.Empty(t, i.processes, "not at once: there are too many")
	i.lookForMissed(now.Add(lookInterval))
	require.Contains(t, i.processes, c.pid())
	require.True(t, i.refused.IsZero())
}
