package unwinder

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// sendEntries plays the unwinder's part. It has all requested chains except those for tracepoints.
func sendEntries(role int) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	switch role {
	case playEntries, playLater, playStays:
		refusals := 1 // of tracepoints
		if role != playLater {
			refusals = math.MaxInt
		}
		send := func(kinds []wire.ChainKind) {
			e := wire.Entries{Descriptors: map[wire.ChainKind]int{}, Refused: map[wire.ChainKind]string{}}
			for _, kind := range kinds {
				if kind == wire.ChainTracepoint && refusals > 0 {
					refusals--
					e.Refused[kind] = "invalid argument"
					continue
				}
				p, err := entryProgram(programTypes[kind])
				must(err)
				runtime.SetFinalizer(p, nil)
				e.Descriptors[kind] = p.FD()
			}
			must(wire.SendEntries(5, e))
		}
		kinds, err := wire.ParseChains(os.Args[slices.Index(os.Args, "-chains")+1])
		must(err)
		send(kinds)
		go func() {
			for {
				if kinds, err = wire.ReceiveAsked(5); err != nil {
					return
				}
				send(kinds)
			}
		}()
	case playForeign:
		must(wire.SendEntries(5, wire.Entries{Descriptors: map[wire.ChainKind]int{wire.ChainKprobe: 3}}))
	case playUnasked:
		for {
			must(wire.SendEntries(5, wire.Entries{}))
		}
	}
}

func entryProgram(typ ebpf.ProgramType) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: typ, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
}

func forGadgets(role int) Settings {
	return Settings{Labels: ask(role).Labels, Chains: wire.ChainRawTracepoint.String(), Languages: all}
}

// array makes a gadget's array for one entry.
func array(t *testing.T) *ebpf.Map {
	t.Helper()
	return igtest.Map(t, &ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
}

// inArray returns the ID of the program that a gadget would call, or 0.
func inArray(m *ebpf.Map) (id uint32) {
	_ = m.Lookup(uint32(0), &id)
	return id
}

// TestKilledIsNotCalled checks that gadgets stop calling an unwinder when it is killed, although it may take long to exit.
func TestKilledIsNotCalled(t *testing.T) {
	igtest.NeedRoot(t)
	for name, unanswered := range map[string]time.Duration{"files do not answer": 2 * time.Second, "damaged stream": time.Hour} {
		t.Run(name, func(t *testing.T) {
			entry := array(t) // the broker uses it until s.Close returns
			b, _ := newTestBroker()
			b.unanswered, b.endTime, b.firstBackoff = unanswered, time.Hour, time.Hour
			s := subscribe(t, b, forGadgets(playStays))
			stays := int((<-s.C)[0].Proc.PID)
			t.Cleanup(func() {
				_ = unix.Kill(stays, unix.SIGKILL)
				s.Close()
			})
			require.NoError(t, s.Serve(wire.ChainRawTracepoint, entry))
			require.NotZero(t, inArray(entry))
			if unanswered == time.Hour {
				stream, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/3", stays), os.O_WRONLY, 0)
				require.NoError(t, err)
				defer stream.Close()
				_, err = stream.WriteString("\x00\x00\x00")
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool { return inArray(entry) == 0 }, time.Minute, time.Millisecond)
		})
	}
}

// TestEntriesAreServed checks that gadgets call the entry of the running unwinder, and later the entry of the next unwinder.
// Each gadget gets its own events.
func TestEntriesAreServed(t *testing.T) {
	igtest.NeedRoot(t)
	b, _ := newTestBroker()
	s := subscribe(t, b, forGadgets(playEntries))
	require.Equal(t, uint32(1), s.Run())
	entry := array(t)
	require.NoError(t, s.Serve(wire.ChainRawTracepoint, entry))
	require.Eventually(t, func() bool { return inArray(entry) != 0 }, time.Minute, time.Millisecond)
	first := inArray(entry)

	other := subscribe(t, b, forGadgets(playEntries))
	require.Equal(t, uint32(2), other.Run())
	for _, sub := range []*Subscription{s, other} {
		batch := <-sub.C
		require.NotEmpty(t, batch)
		for _, u := range batch {
			require.Equal(t, sub.Run(), wire.RunOf(u.ID))
		}
	}
	late := array(t)
	require.NoError(t, other.Serve(wire.ChainRawTracepoint, late))
	require.Equal(t, first, inArray(late))
	other.Close()
	require.Zero(t, inArray(late), "nobody reads its stacks any more")

	// The unwinder ends, as if it was killed, and another one replaces it.
	child := (<-s.C)[0].Proc.PID
	p, err := os.FindProcess(int(child))
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.Eventually(t, func() bool { return inArray(entry) == 0 }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return inArray(entry) != 0 && inArray(entry) != first }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, b.Totals().Restarts)
	s.Close()
	require.Zero(t, inArray(entry))
}

// TestLaterEntries checks that later gadgets do not end the unwinder. It loads the other chains that they need. Inspektor
// Gadget's own gadgets share a number.
func TestLaterEntries(t *testing.T) {
	igtest.NeedRoot(t)
	b, l := newTestBroker()
	settings := forGadgets(playEntries)
	settings.Chains = "perf"
	s := subscribe(t, b, settings)
	defer s.Close()
	child := (<-s.C)[0].Proc.PID
	for _, chains := range []string{"perf", "kprobe", "otel_perf", "otel_kprobe,otel_perf", "perf,raw_tp", "raw_tp"} {
		settings.Chains = chains
		later := subscribe(t, b, settings)
		require.Equal(t, strings.HasPrefix(chains, "otel"), later.Run() == wire.OtelRun, chains)
		kinds, err := wire.ParseChains(chains)
		require.NoError(t, err)
		for _, kind := range kinds {
			// The entry exists before the gadget is loaded, so none of its events lacks one.
			entry := array(t)
			require.NoError(t, later.Serve(kind, entry))
			require.NotZero(t, inArray(entry), kind)
		}
		later.Close()
	}
	// Each request for a chain that the kernel refuses returns an error.
	for range wire.ChainKinds + 2 {
		settings.Chains = "tracepoint"
		_, err := b.Subscribe(t.Context(), settings)
		require.EqualError(t, err, "the kernel refused the unwinder's programs for tracepoint: invalid argument")
	}
	require.Equal(t, child, (<-s.C)[0].Proc.PID)
	require.EqualValues(t, 1, b.Totals().Starts)

	// An unwinder that is started later loads all chains at once.
	process, err := os.FindProcess(int(child))
	require.NoError(t, err)
	entry := array(t)
	require.NoError(t, s.Serve(wire.ChainRawTracepoint, entry))
	require.NoError(t, s.Serve(wire.ChainTracepoint, array(t)))
	first := inArray(entry)
	const refused = "warning: some gadgets get only frame-pointer stacks: the kernel refused the unwinder's programs for tracepoint: invalid argument"
	require.NotContains(t, l.String(), refused)
	require.NoError(t, process.Kill())
	require.Eventually(t, func() bool { return inArray(entry) != 0 && inArray(entry) != first }, time.Minute, time.Millisecond)
	// A running gadget continues without the chains that this unwinder has not loaded, and the log says so.
	require.Eventually(t, func() bool { return strings.Contains(l.String(), refused) }, time.Minute, time.Millisecond)
}

// running returns a broker with a gadget as its subscriber.
func running(t *testing.T, role int) (*Broker, Settings, *Subscription) {
	t.Helper()
	igtest.NeedRoot(t)
	b, _ := newTestBroker()
	b.chainTime = 30 * time.Second
	settings := forGadgets(role)
	s := subscribe(t, b, settings)
	t.Cleanup(s.Close)
	return b, settings, s
}

// TestRefusedForNow checks that a refused chain is tried again for the next gadget, and that earlier gadgets get it, too.
func TestRefusedForNow(t *testing.T) {
	b, settings, s := running(t, playLater)
	without := array(t)
	require.NoError(t, s.Serve(wire.ChainTracepoint, without))
	settings.Chains = "tracepoint"
	_, err := b.Subscribe(t.Context(), settings)
	require.ErrorContains(t, err, "the kernel refused the unwinder's programs for tracepoint: invalid argument")
	require.Zero(t, inArray(without))
	later := subscribe(t, b, settings)
	defer later.Close()
	require.NotZero(t, inArray(without))
	require.EqualValues(t, 1, b.Totals().Starts)
}

// TestNoNextProgram checks that a subscriber that waits for the next unwinder gets an error at once if none is started.
func TestNoNextProgram(t *testing.T) {
	b, settings, _ := running(t, playEntries)
	hang(t, b)
	settings.Scale++
	_, err := b.Subscribe(t.Context(), settings)
	require.ErrorContains(t, err, "3 unwinders are blocked")
}

// TestEntriesOfTheNext checks a subscriber whose settings end the unwinder. It must wait for the next unwinder's entries or
// error.
func TestEntriesOfTheNext(t *testing.T) {
	b, settings, s := running(t, playEntries)
	entry := array(t)
	require.NoError(t, s.Serve(wire.ChainRawTracepoint, entry))
	first := inArray(entry)
	require.NotZero(t, first)

	settings.Scale++
	later := subscribe(t, b, settings)
	defer later.Close()
	require.NotZero(t, inArray(entry))
	require.NotEqual(t, first, inArray(entry))

	_, err := b.Subscribe(t.Context(), forGadgets(playDenied))
	require.ErrorContains(t, err, "the unwinder needs CAP_BPF")
}

// TestEntriesOfAnotherType checks that a hostile unwinder can send anything, or nothing, in place of its entries.
func TestEntriesOfAnotherType(t *testing.T) {
	igtest.NeedRoot(t)
	for role, want := range map[int]string{playForeign: "the entry for kprobe programs", playUnasked: "the unwinder sent programs that were not requested", playGood: ""} {
		b, l := newTestBroker()
		b.chainTime = time.Second
		s, err := b.Subscribe(t.Context(), forGadgets(role))
		if role == playUnasked {
			require.NoError(t, err)
			require.Eventually(t, func() bool { return b.Totals().Restarts >= 1 }, time.Minute, time.Millisecond)
			s.Close()
		} else {
			require.EqualError(t, err, "the unwinder did not load its programs for raw_tp within 1s")
		}
		require.Contains(t, l.String(), want)
	}

	p, err := entryProgram(ebpf.RawTracepoint)
	require.NoError(t, err)
	fd, err := unix.Dup(p.FD()) // programs takes ownership
	require.NoError(t, err)
	_, err = programs(map[wire.ChainKind]int{wire.ChainKprobe: fd})
	require.ErrorContains(t, err, "is a RawTracepoint program")
}

// TestRunNumbers checks that numbers of runs are reused as late as possible, and fit into an ID.
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
