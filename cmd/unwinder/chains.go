package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.opentelemetry.io/ebpf-profiler/tracer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// This file contains all code that uses the profiler's unstable interface for external probes.

const profilerModule = "go.opentelemetry.io/ebpf-profiler"

// entryVersion is the profiler version that the entry programs were compiled with. They use structs of that version.
//
//go:embed bpf/module_version.txt
var entryVersion string

// checkVersion returns an error if this program was built with a different profiler version.
func checkVersion(info *debug.BuildInfo) error {
	want := strings.TrimSpace(entryVersion)
	for _, m := range info.Deps {
		if m.Path != profilerModule {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != want {
			return fmt.Errorf("the entry programs were compiled for %s %s, and this program was built with %s: run make unwinder-bpf and rebuild this program", profilerModule, want, m.Version)
		}
		return nil
	}
	return fmt.Errorf("the build information of this program has no version of %s", profilerModule)
}

// unwinders lists the programs in a chain, by their names in the profiler's object, without prefix. It also contains their
// indices in the profiler's program array.
var unwinders = []struct {
	name string
	id   uint32
	off  func(c *interpreterconfig.Config) bool
}{
	{"unwind_stop", uint32(support.ProgUnwindStop), nil},
	{"unwind_native", uint32(support.ProgUnwindNative), nil},
	{"unwind_hotspot", uint32(support.ProgUnwindHotspot), func(c *interpreterconfig.Config) bool { return c.Hotspot.IsDisabled() }},
	{"unwind_perl", uint32(support.ProgUnwindPerl), func(c *interpreterconfig.Config) bool { return c.Perl.IsDisabled() }},
	{"unwind_php", uint32(support.ProgUnwindPHP), func(c *interpreterconfig.Config) bool { return c.PHP.IsDisabled() }},
	{"unwind_python", uint32(support.ProgUnwindPython), func(c *interpreterconfig.Config) bool { return c.Python.IsDisabled() }},
	{"unwind_ruby", uint32(support.ProgUnwindRuby), func(c *interpreterconfig.Config) bool { return c.Ruby.IsDisabled() }},
	{"unwind_v8", uint32(support.ProgUnwindV8), func(c *interpreterconfig.Config) bool { return c.V8.IsDisabled() }},
	{"unwind_dotnet", uint32(support.ProgUnwindDotnet), func(c *interpreterconfig.Config) bool { return c.Dotnet.IsDisabled() }},
	{"unwind_dotnet10", uint32(support.ProgUnwindDotnet10), func(c *interpreterconfig.Config) bool { return c.Dotnet.IsDisabled() }},
	{"unwind_beam", uint32(support.ProgUnwindBEAM), func(c *interpreterconfig.Config) bool { return c.BEAM.IsDisabled() }},
	{"go_labels", uint32(support.ProgGoLabels), func(c *interpreterconfig.Config) bool { return c.Go.IsLabelsDisabled() }},
}

// chain describes the unwinders for one kind of program. The perf_event chains use the profiler's own unwinders. The profiler's
// timer does not run here, so only gadgets call them. The other chains use copies with their own program array and their own
// record. With a shared record, chains would overwrite each other's stacks.
type chain struct {
	kind  wire.ChainKind
	entry string           // the entry program's name in the object of this module
	typ   ebpf.ProgramType // program type of the copy, which chains of this type share; UnspecifiedProgram: the profiler's own programs
}

var chains = []chain{
	{kind: wire.ChainKprobe, entry: "gadget_kprobe", typ: ebpf.Kprobe},
	{kind: wire.ChainRawTracepoint, entry: "gadget_raw_tp", typ: ebpf.RawTracepoint},
	{kind: wire.ChainTracepoint, entry: "gadget_tracepoint", typ: ebpf.TracePoint},
	{kind: wire.ChainPerfEvent, entry: "gadget_perf"},
	{kind: wire.ChainOtelKprobe, entry: "otel_kprobe", typ: ebpf.Kprobe},
	{kind: wire.ChainOtelPerf, entry: "otel_perf"},
}

// copiedPrefix is the name prefix of the profiler programs that are copied. These programs read the registers from the record.
const copiedPrefix = "kprobe_"

// These constants name maps in the profiler's programs.
const (
	progsMap   = "perf_progs"
	recordsMap = "per_cpu_records"
)

// gadgetChains holds the chains that gadgets' programs can call. It implements tracer.Probe.
type gadgetChains struct {
	kinds     []wire.ChainKind // loaded first
	languages interpreterconfig.Config
	shared    map[string]*ebpf.Map // maps that ig created, see gadgets/include/unwind_slot.h
	guards    *ebpf.Map
	origin    uint16 // marks the gadgets' events for the profiler
	profiler  *tracer.ProbeContext
	first     wire.Entries // the results of loading kinds
	copies    map[ebpf.ProgramType]copied
	keep      []io.Closer // entry programs and maps of copies, which exist until they are closed
}

// copied holds the maps that belong to a copy of the unwinders.
type copied struct{ array, records *ebpf.Map }

// Load implements tracer.Probe.
func (g *gadgetChains) Load(_ context.Context, registrar tracer.ProbeRegistrar, profiler *tracer.ProbeContext) (link.Link, error) {
	var err error
	if g.origin, err = registrar.Register(&samples.TypeMetadata{SampleType: "gadgets", SampleUnit: "count", ReportValues: true}); err != nil {
		return nil, fmt.Errorf("registering the gadgets' events: %w", err)
	}
	g.profiler = profiler
	g.first, err = g.load(g.kinds)
	return nil, err
}

// enable makes the profiler load the chains. Tracer.Enable requires the profiler's own kprobe chain, which takes a second of CPU
// time to load. The chains here are copies and do not use it, so enable only marks it as loaded.
func (g *gadgetChains) enable(ctx context.Context, t *tracer.Tracer) error {
	there, err := private[bool](t, "kprobeChainLoaded")
	if err != nil {
		return err
	}
	*there = true
	return t.Enable(ctx, g)
}

// load loads chains with their entry programs. The result also lists the chains that the kernel rejects.
func (g *gadgetChains) load(kinds []wire.ChainKind) (wire.Entries, error) {
	loaded := wire.Entries{Descriptors: map[wire.ChainKind]int{}, Refused: map[wire.ChainKind]string{}}
	entries, err := g.spec()
	if err != nil {
		return loaded, err
	}
	if g.guards == nil {
		if g.guards, err = ebpf.NewMap(entries.Maps["guards"]); err != nil {
			return loaded, fmt.Errorf("creating the guards: %w", err)
		}
	}
	for _, c := range chains {
		if !slices.Contains(kinds, c.kind) {
			continue
		}
		before, copies := len(g.keep), maps.Clone(g.copies)
		entry, err := g.entry(c, entries.Copy())
		if err != nil { // close everything, because the chain may be requested again
			loaded.Refused[c.kind] = err.Error()
			for _, made := range g.keep[before:] {
				_ = made.Close()
			}
			g.keep, g.copies = g.keep[:before], copies
			continue
		}
		loaded.Descriptors[c.kind] = entry.FD()
	}
	return loaded, nil
}

// spec returns the programs in the object of this module, with the profiler's data on this kernel.
func (g *gadgetChains) spec() (*ebpf.CollectionSpec, error) {
	entries, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(entryObject))
	if err != nil {
		return nil, fmt.Errorf("reading the entry programs: %w", err)
	}
	system, err := g.profiler.CollectionSpecWith(nil, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the profiler's data on this kernel: %w", err)
	}
	for name, v := range system.Variables {
		if own := entries.Variables[name]; own != nil {
			own.Value = v.Value
		}
	}
	if err := entries.Variables["gadgets_origin"].Set(g.origin); err != nil {
		return nil, fmt.Errorf("setting the origin of the gadgets' events: %w", err)
	}
	return entries, nil
}

// watchExecs makes the profiler read the mappings of a process again when the process executes another program.
func (g *gadgetChains) watchExecs() error {
	spec, err := g.spec()
	if err != nil {
		return err
	}
	program, err := g.program("process_exec", spec, map[string]*ebpf.Map{})
	if err != nil {
		return err
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exec", Program: program})
	if err != nil {
		return fmt.Errorf("attaching to sched_process_exec: %w", err)
	}
	g.keep = append(g.keep, l)
	return nil
}

// entry loads a chain and its entry program, which gadgets call.
func (g *gadgetChains) entry(c chain, spec *ebpf.CollectionSpec) (*ebpf.Program, error) {
	program, own := spec.Programs[c.entry], maps.Clone(g.shared)
	own["guards"] = g.guards
	if c.typ != ebpf.UnspecifiedProgram {
		theirs, err := g.copy(c.typ)
		if err != nil {
			return nil, err
		}
		own[ownName(progsMap, c.typ)], own[ownName(recordsMap, c.typ)] = theirs.array, theirs.records
		refer(program, progsMap, ownName(progsMap, c.typ))
		refer(program, recordsMap, ownName(recordsMap, c.typ))
	}
	return g.program(c.entry, spec, own)
}

// program loads a program of this module's object, and adds it to keep.
func (g *gadgetChains) program(name string, spec *ebpf.CollectionSpec, own map[string]*ebpf.Map) (*ebpf.Program, error) {
	maps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
	// The profiler has another map .rodata, which RewriteMaps would put in the place of this one.
	spec.Maps[".rodata.own"] = spec.Maps[".rodata"]
	refer(spec.Programs[name], ".rodata", ".rodata.own")
	loaded, err := g.collection(spec, own)
	if err != nil {
		return nil, fmt.Errorf("loading the program %s: %w", name, err)
	}
	defer loaded.Close()
	program := loaded.DetachProgram(name)
	g.keep = append(g.keep, program)
	return program, nil
}

// ownName returns the name of the map in a copy that replaces one of the profiler's maps.
func ownName(name string, typ ebpf.ProgramType) string { return name + "_" + typ.String() }

// copy loads the unwinders again as programs of another type. It does so once per type.
func (g *gadgetChains) copy(typ ebpf.ProgramType) (copied, error) {
	if made, ok := g.copies[typ]; ok {
		return made, nil
	}
	ids := map[string]uint32{}
	for _, u := range unwinders {
		if u.off == nil || !u.off(&g.languages) {
			ids[copiedPrefix+u.name] = u.id
		}
	}
	spec, err := g.profiler.CollectionSpecWith([]string{progsMap, recordsMap}, slices.Collect(maps.Keys(ids)), nil)
	if err != nil {
		return copied{}, err
	}
	var made copied
	if made.array, err = ebpf.NewMap(spec.Maps[progsMap]); err != nil {
		return copied{}, fmt.Errorf("creating the array of programs: %w", err)
	}
	g.keep = append(g.keep, made.array)
	if made.records, err = ebpf.NewMap(spec.Maps[recordsMap]); err != nil {
		return copied{}, fmt.Errorf("creating the map of records: %w", err)
	}
	g.keep = append(g.keep, made.records)
	for _, p := range spec.Programs {
		refer(p, progsMap, ownName(progsMap, typ))
		refer(p, recordsMap, ownName(recordsMap, typ))
		p.Type, p.AttachTo, p.AttachType = typ, "", ebpf.AttachNone
	}
	loaded, err := g.collection(spec, map[string]*ebpf.Map{ownName(progsMap, typ): made.array, ownName(recordsMap, typ): made.records})
	if err != nil {
		return copied{}, fmt.Errorf("loading the unwinders: %w", err)
	}
	defer loaded.Close() // the array holds references
	for name, program := range loaded.Programs {
		if err := made.array.Update(ids[name], program, ebpf.UpdateAny); err != nil {
			return copied{}, fmt.Errorf("adding %s to the array of programs: %w", name, err)
		}
	}
	if g.copies == nil {
		g.copies = map[ebpf.ProgramType]copied{}
	}
	g.copies[typ] = made
	return made, nil
}

// refer replaces a map's name in a program.
func refer(p *ebpf.ProgramSpec, from, to string) {
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.Reference() == from {
			*ins = ins.WithReference(to)
		}
	}
}

// collection loads the programs and constants in spec. It replaces other maps by the maps in own, or by the profiler's maps.
func (g *gadgetChains) collection(spec *ebpf.CollectionSpec, own map[string]*ebpf.Map) (*ebpf.Collection, error) {
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return !strings.HasPrefix(name, ".rodata") })
	if err := g.profiler.RewriteMaps(spec, own); err != nil {
		return nil, err
	}
	return ebpf.NewCollection(spec)
}
