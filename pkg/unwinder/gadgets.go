package unwinder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// gadgets holds the state with which gadgets' programs call the unwinder. Broker.mu guards it.
type gadgets struct {
	shared  map[string]*ebpf.Map // by name in wire.SharedMaps, for all runs of the unwinder and of gadgets
	entries map[wire.ChainKind]*ebpf.Program
	refused map[wire.ChainKind]string // the reason why a kind has no entry
	again   []wire.ChainKind          // refused before and requested again, because the kernel may accept them now
	arrays  map[*Subscription]map[wire.ChainKind]*ebpf.Map
	last    uint32        // the last number that was assigned
	process *process      // the owner of entries
	more    chan struct{} // closed when entries or process have changed
	served  bool          // this supervisor has seen an unwinder with entries, and has not ended it for other settings
}

// programTypes maps kinds of chains to the types of the programs that call them.
var programTypes = [wire.ChainKinds]ebpf.ProgramType{
	wire.ChainKprobe: ebpf.Kprobe, wire.ChainRawTracepoint: ebpf.RawTracepoint, wire.ChainPerfEvent: ebpf.PerfEvent, wire.ChainTracepoint: ebpf.TracePoint,
	wire.ChainOtelKprobe: ebpf.Kprobe, wire.ChainOtelPerf: ebpf.PerfEvent,
}

// Slots returns the map that all gadgets of this process share with the unwinder. It has a struct unwind_slot
// (gadgets/include/unwind_slot.h) for each CPU and kind of chain. It belongs to the broker.
func (b *Broker) Slots() (*ebpf.Map, error) { return b.shared("slots") }

// OtelIDs returns the map with the event IDs for Inspektor Gadget's own gadgets. An event without a stack has ID 0. The map
// belongs to the broker.
func (b *Broker) OtelIDs() (*ebpf.Map, error) { return b.shared("otel_ids") }

// OtelResults returns the results of all events of Inspektor Gadget's own gadgets, indexed by wire.Result….
func (b *Broker) OtelResults() (sum [wire.Results]uint64) {
	state, err := b.shared("otel")
	if err != nil {
		return sum
	}
	for kind := range uint32(wire.Slots) {
		var cpus []wire.Otel
		if state.Lookup(kind, &cpus) != nil {
			continue
		}
		for i := range cpus {
			for r, n := range cpus[i].Results {
				sum[r] += n
			}
		}
	}
	return sum
}

// shared returns one of wire.SharedMaps. It creates each map once.
func (b *Broker) shared(name string) (*ebpf.Map, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.gadgets.shared[name]; m != nil {
		return m, nil
	}
	shape := map[string]struct{ size, entries uint32 }{
		"slots": {uint32(unsafe.Sizeof(wire.Slot{})), uint32(wire.Slots)}, "otel": {uint32(unsafe.Sizeof(wire.Otel{})), uint32(wire.Slots)}, "otel_ids": {8, 1},
	}[name]
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "unwind_" + name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: shape.size, MaxEntries: shape.entries})
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("creating the map that gadgets share with the unwinder is not permitted: grant CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN (run this program as root; in a container, as privileged or with these capabilities in securityContext.capabilities.add)")
	}
	if err != nil {
		return nil, fmt.Errorf("creating the map that gadgets share with the unwinder: %w", err)
	}
	b.gadgets.shared[name] = m
	return m, nil
}

// number returns an unused number for a gadget's run, or 0 if all are in use. It prefers the number that has been unused
// longest, because events of the number's last run can still arrive. The caller holds mu.
func (g *gadgets) number(subscribers map[*Subscription]struct{}) uint32 {
	taken := map[uint32]bool{}
	for s := range subscribers {
		taken[s.run] = true
	}
	for range wire.OtelRun {
		if g.last = (g.last + 1) % wire.OtelRun; g.last != 0 && !taken[g.last] {
			return g.last
		}
	}
	return 0
}

// Run returns the number of the gadget's run, which is part of the IDs of its events.
func (s *Subscription) Run() uint32 { return s.run }

// Serve stores the unwinder's entry for a kind of chain at index 0 of a program array, whenever there is an entry. The caller
// owns the array, and closes the subscription before the array.
func (s *Subscription) Serve(kind wire.ChainKind, array *ebpf.Map) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	g := &s.b.gadgets
	if g.arrays == nil {
		g.arrays = map[*Subscription]map[wire.ChainKind]*ebpf.Map{}
	}
	if g.arrays[s] == nil {
		g.arrays[s] = map[wire.ChainKind]*ebpf.Map{}
	}
	g.arrays[s][kind] = array
	return put(array, g.entries[kind])
}

// Read makes the unwinder read the files of a process before its first event. Otherwise the first stacks of an unknown process
// are cut.
func (s *Subscription) Read(pid uint32) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if p := s.b.gadgets.process; p != nil {
		p.read(pid)
	}
}

// put stores a program in an array of length one, or empties the array.
func put(array *ebpf.Map, program *ebpf.Program) error {
	if program == nil {
		if err := array.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing the unwinder's entry from the gadget: %w", err)
		}
		return nil
	}
	if err := array.Put(uint32(0), program); err != nil {
		return fmt.Errorf("adding the unwinder's entry to the gadget: %w", err)
	}
	return nil
}

// forget undoes Serve. The caller holds mu.
func (g *gadgets) forget(s *Subscription) {
	for _, array := range g.arrays[s] {
		_ = put(array, nil)
	}
	delete(g.arrays, s)
}

// add takes ownership of further entries, and makes gadgets call them. The error also names the chains that running gadgets
// lack.
func (b *Broker) add(p *process, entries map[wire.ChainKind]*ebpf.Program, refused map[wire.ChainKind]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := &b.gadgets
	g.process, g.served = p, true
	var errs []error
	for kind, why := range refused {
		g.refused[kind] = why
		for _, arrays := range g.arrays {
			if arrays[kind] != nil { // await gives this error to new subscribers
				errs = append(errs, refusal(kind, why))
				break
			}
		}
	}
	for kind, entry := range entries {
		if before := g.entries[kind]; before != nil {
			errs = append(errs, before.Close())
		}
		delete(g.refused, kind)
		g.entries[kind] = entry
		for _, arrays := range g.arrays {
			if array := arrays[kind]; array != nil {
				errs = append(errs, put(array, entry))
			}
		}
	}
	g.changed()
	return errors.Join(errs...)
}

// clear removes the entries of an unwinder that ends from all gadgets.
func (b *Broker) clear() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := &b.gadgets
	if g.process != nil {
		_, g.served = g.process.settings.grown(b.settings)
	}
	var errs []error
	for _, arrays := range g.arrays {
		for _, array := range arrays {
			errs = append(errs, put(array, nil))
		}
	}
	for _, entry := range g.entries {
		errs = append(errs, entry.Close())
	}
	clear(g.entries)
	clear(g.refused)
	g.again, g.process = nil, nil
	g.changed()
	return errors.Join(errs...)
}

// retry requests refused chains again, and reports whether there are any. The caller holds mu.
func (g *gadgets) retry(kinds []wire.ChainKind) bool {
	before := len(g.again)
	for _, kind := range kinds {
		if _, refused := g.refused[kind]; refused {
			delete(g.refused, kind)
			g.again = append(g.again, kind)
		}
	}
	return len(g.again) > before
}

// again returns the chains to request again, and clears their list.
func (b *Broker) again() []wire.ChainKind {
	b.mu.Lock()
	defer b.mu.Unlock()
	kinds := b.gadgets.again
	b.gadgets.again = nil
	return kinds
}

// changed wakes the callers that wait for entries. The caller holds mu.
func (g *gadgets) changed() {
	close(g.more)
	g.more = make(chan struct{})
}

// await waits until the unwinder has loaded these chains for gadgets. The error names the chains that it could not load. During
// a restart, await does not wait, so the gadget starts without entries. If the unwinder ends because of other settings, await
// waits for the next unwinder.
func (b *Broker) await(ctx context.Context, sub *Subscription, kinds []wire.ChainKind) error {
	over := time.After(b.chainTime)
	for {
		b.mu.Lock()
		loaded, err := b.gadgets.loaded(kinds, b.settings)
		more := b.gadgets.more
		b.mu.Unlock()
		if loaded || err != nil {
			return err
		}
		select {
		case <-more:
		case err := <-sub.first:
			if err != nil {
				return err
			}
		case <-over:
			return fmt.Errorf("the unwinder did not load its programs for %s within %v", wire.JoinChains(kinds, ", "), b.chainTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// loaded reports whether the chains can be called, or whether there is no unwinder to wait for. The error names a chain that
// was not loaded. The caller holds mu.
func (g *gadgets) loaded(kinds []wire.ChainKind, settings Settings) (bool, error) {
	if g.process == nil {
		return g.served, nil
	}
	if _, stays := g.process.settings.grown(settings); !stays {
		return false, nil
	}
	all := true
	for _, kind := range kinds {
		if why, refused := g.refused[kind]; refused {
			return false, refusal(kind, why)
		}
		all = all && g.entries[kind] != nil
	}
	return all, nil
}

func refusal(kind wire.ChainKind, why string) error {
	return fmt.Errorf("the kernel refused the unwinder's programs for %s: %s", kind, why)
}

// serve receives a run's entry programs and makes gadgets call them until the run ends or kill is called. The error means that
// the unwinder sent something else.
func (b *Broker) serve(p *process) error {
	if p.entries == nil {
		return nil
	}
	defer func() {
		if err := b.clear(); err != nil {
			b.log.Debugf("%v", err)
		}
	}()
	// Each answer except the first belongs to a question.
	for answers := int64(0); ; answers++ {
		// The wait ends when the unwinder or this process ends.
		sent, err := wire.ReceiveEntries(int(p.entries.Fd()))
		if errors.Is(err, io.EOF) {
			return nil // the unwinder has ended; the reader of its stream handles that
		}
		if err != nil {
			return err
		}
		if answers > p.questions.Load() {
			for _, fd := range sent.Descriptors {
				_ = unix.Close(fd)
			}
			return fmt.Errorf("%w: the unwinder sent programs that were not requested", wire.ErrProtocol)
		}
		entries, err := programs(sent.Descriptors)
		if err != nil {
			return err
		}
		if err := b.add(p, entries, sent.Refused); err != nil {
			b.log.Warnf("some gadgets get only frame-pointer stacks: %v", err)
		}
	}
}

// programs converts descriptors to programs, and takes ownership of the descriptors.
func programs(descriptors map[wire.ChainKind]int) (map[wire.ChainKind]*ebpf.Program, error) {
	made := map[wire.ChainKind]*ebpf.Program{}
	var errs []error
	for kind, fd := range descriptors {
		p, err := ebpf.NewProgramFromFD(fd)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("the entry for %s programs: %w", kind, err))
		case p.Type() != programTypes[kind]:
			errs = append(errs, fmt.Errorf("the entry for %s programs is a %s program", kind, p.Type()), p.Close())
		default:
			made[kind] = p
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, p := range made {
			_ = p.Close()
		}
		return nil, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	return made, nil
}
