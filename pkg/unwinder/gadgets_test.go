package unwinder

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// sendEntries is the test's program's part.
func sendEntries(role int) {
	switch role {
	case playEntries:
		p, err := entryProgram(ebpf.RawTracepoint)
		if err == nil {
			err = wire.SendEntries(5, map[wire.ChainKind]int{wire.ChainRawTracepoint: p.FD()})
		}
		if err != nil {
			panic(err)
		}
	case playForeign:
		if err := wire.SendEntries(5, map[wire.ChainKind]int{wire.ChainKprobe: 3}); err != nil {
			panic(err)
		}
	}
}

func entryProgram(typ ebpf.ProgramType) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: typ, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
}

func needEBPF(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making eBPF maps takes root")
	}
}

func forGadgets(role int) Settings {
	return Settings{Labels: ask(role).Labels, Chains: wire.ChainRawTracepoint.String(), Languages: all}
}

// array makes a gadget's array for one entry.
func array(t *testing.T) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// inArray is the ID of the program that a gadget would call, 0 without one.
func inArray(m *ebpf.Map) (id uint32) {
	_ = m.Lookup(uint32(0), &id)
	return id
}

// Gadgets call the program's entry as long as it runs, and that of the next one after its end; each gets its own events.
func TestEntriesAreServed(t *testing.T) {
	needEBPF(t)
	b, _ := newTestBroker()
	s, err := b.Subscribe(t.Context(), forGadgets(playEntries))
	require.NoError(t, err)
	require.Equal(t, uint32(1), s.Run())
	entry := array(t)
	require.NoError(t, s.Serve(wire.ChainRawTracepoint, entry))
	require.Eventually(t, func() bool { return inArray(entry) != 0 }, time.Minute, time.Millisecond)
	first := inArray(entry)

	other, err := b.Subscribe(t.Context(), forGadgets(playEntries))
	require.NoError(t, err)
	require.Equal(t, uint32(2), other.Run())
	for _, sub := range []*Subscription{s, other} {
		batch := <-sub.C
		require.NotEmpty(t, batch.Unwound)
		for _, u := range batch.Unwound {
			require.Equal(t, sub.Run(), wire.RunOf(u.ID))
		}
	}
	late := array(t)
	require.NoError(t, other.Serve(wire.ChainRawTracepoint, late))
	require.Equal(t, first, inArray(late))
	other.Close()
	require.Zero(t, inArray(late), "nobody reads its stacks any more")

	// The program ends, as when it is killed, and another one takes its place.
	child := (<-s.C).Unwound[0].Proc.PID
	p, err := os.FindProcess(int(child))
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.Eventually(t, func() bool { return inArray(entry) == 0 }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return inArray(entry) != 0 && inArray(entry) != first }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, b.Totals().Restarts)
	s.Close()
	require.Zero(t, inArray(entry))
}

// Gadgets that come later do not end the program where they need no more than another entry, as Inspektor Gadget's own do. These share a number.
func TestLaterEntries(t *testing.T) {
	needEBPF(t)
	b, _ := newTestBroker()
	s, err := b.Subscribe(t.Context(), forGadgets(playEntries))
	require.NoError(t, err)
	defer s.Close()
	child := (<-s.C).Unwound[0].Proc.PID
	for _, chains := range []string{"perf", "kprobe", "otel_perf", "otel_kprobe,otel_perf"} {
		settings := forGadgets(playEntries)
		settings.Chains = chains
		later, err := b.Subscribe(t.Context(), settings)
		require.NoError(t, err)
		require.Equal(t, strings.HasPrefix(chains, "otel"), later.Run() == wire.OtelRun, chains)
		b.mu.Lock()
		require.Equal(t, "kprobe,otel_kprobe,otel_perf,perf,raw_tp", b.settings.Chains)
		b.mu.Unlock()
		later.Close()
	}
	require.Equal(t, child, (<-s.C).Unwound[0].Proc.PID)
	require.EqualValues(t, 1, b.Totals().Starts)
}

// A program that has been taken over may send anything in place of its entries.
func TestEntriesOfAnotherType(t *testing.T) {
	needEBPF(t)
	b, l := newTestBroker()
	s, err := b.Subscribe(t.Context(), forGadgets(playForeign))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Totals().Restarts >= 1 }, time.Minute, time.Millisecond)
	s.Close()
	assert.Contains(t, l.String(), "the entry for kprobe programs")

	p, err := entryProgram(ebpf.RawTracepoint)
	require.NoError(t, err)
	fd, err := unix.Dup(p.FD()) // which programs owns
	require.NoError(t, err)
	_, err = programs(map[wire.ChainKind]int{wire.ChainKprobe: fd})
	require.ErrorContains(t, err, "is a RawTracepoint program")
}

// Numbers of runs come again as late as possible, and there are not more than an ID can hold.
func TestRunNumbers(t *testing.T) {
	var g gadgets
	taken := map[*Subscription]struct{}{}
	for n := uint32(1); n < wire.OtelRun; n++ {
		s := &Subscription{run: g.number(taken)}
		require.Equal(t, n, s.run)
		taken[s] = struct{}{}
	}
	require.Zero(t, g.number(taken))
	for s := range taken {
		if s.run == 7 {
			delete(taken, s)
		}
	}
	require.Equal(t, uint32(7), g.number(taken))
}
