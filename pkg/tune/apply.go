package tune

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// Apply tunes a gadget for a machine. Call it at PreStart, when the parameters are known and the programs are not yet loaded.
// It returns an error if the user requests programs that this kernel cannot attach, or if --also-pids is invalid.
func Apply(gadgetCtx operators.GadgetContext, m Machine) error {
	setSymbols(gadgetCtx, m)
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return nil
	}
	if _, err := AlsoPIDs(gadgetCtx); err != nil {
		return err
	}
	p.chooseSources(gadgetCtx.GetDataSources())
	if err := p.choosePrograms(gadgetCtx, m); err != nil {
		return err
	}
	p.sizeMaps(func(name string) *ebpf.MapSpec { return MapSpec(gadgetCtx, name) }, m, variable[bool](gadgetCtx, wholeVar), gadgetCtx.Logger())
	return nil
}

// choosePrograms attaches programs to events that this kernel has. Such a program is disabled in the metadata. Its entry there
// can have
//
//	tracepoint  the tracepoint of a raw_tp program, or
//	kprobe      the function of a kprobe, used if the tracepoints are missing; each thread switch must call the function,
//	param       a parameter that becomes "true" with the program; the user can prevent that with a value other than "auto" and "true",
//	spares      the size of a map that is then unused, and gets one entry.
//
// Programs with the same parameter are attached together. They are attached to tracepoints if the kernel has all of them, and
// otherwise to kprobes.
func (p parameters) choosePrograms(gadgetCtx operators.GadgetContext, m Machine) error {
	params := map[string]bool{}
	for program := range p.metadata.GetStringMap("programs") {
		params[p.program(program, "param")] = true
	}
	delete(params, "")
	for param := range params {
		if !p.wanted(param) {
			continue
		}
		events, err := p.eventsOnce(gadgetCtx, param, m)
		if err != nil && p.isDefault(param) {
			continue
		}
		if err != nil {
			return fmt.Errorf("--%s=true: %w", p.key(param), err)
		}
		p.set(param, "true")
		for program, target := range events.targets {
			p.metadata.Set("programs."+program+".attach_to", target)
			if spared := p.program(program, "spares"); spared != "" && p.isDefault(spared) {
				p.set(spared, "1")
			}
		}
	}
	return nil
}

// wanted reports whether the programs of a parameter should be attached.
func (p parameters) wanted(param string) bool {
	return p.entry(param, "defaultvalue") == "auto" && (p.isDefault(param) || p.values[p.key(param)] == "true")
}

// Events are the attachment points of programs, which are either all tracepoints or all kprobes.
type Events struct {
	Kprobes bool
	targets map[string]string // keyed by program
}

// String describes the events for the log.
func (e Events) String() string {
	names := strings.Join(slices.Sorted(maps.Values(e.targets)), ", ")
	if e.Kprobes {
		return "a kprobe on " + names
	}
	return "the tracepoint " + names
}

// Found returns the attachment points of a parameter's programs, or an error with the reason if there are none. Apply uses the
// same attachment points.
func Found(gadgetCtx operators.GadgetContext, param string, m Machine) (Events, error) {
	p, ok := parametersOf(gadgetCtx)
	if !ok {
		return Events{}, errors.New("the gadget's parameters are unknown")
	}
	if !p.wanted(param) {
		v, _ := Value(gadgetCtx, param)
		return Events{}, fmt.Errorf("--%s=%s is set", p.key(param), v)
	}
	return p.eventsOnce(gadgetCtx, param, m)
}

// eventsOnce caches the result of events in this run, so that all callers get the same result.
func (p parameters) eventsOnce(gadgetCtx operators.GadgetContext, param string, m Machine) (Events, error) {
	find := variable[func() (Events, error)](gadgetCtx, eventsVar+param)
	if find == nil {
		find = sync.OnceValues(func() (Events, error) { return p.events(param, m) })
		gadgetCtx.SetVar(eventsVar+param, find)
	}
	return find()
}

// events finds the attachment points of a parameter's programs.
func (p parameters) events(param string, m Machine) (Events, error) {
	tracepoints := p.of(param, "tracepoint")
	var missing []string
	for _, name := range tracepoints {
		if !m.HasTracepoint(name) {
			missing = append(missing, name)
		}
	}
	if len(tracepoints) > 0 && len(missing) == 0 {
		return Events{targets: tracepoints}, nil
	}
	err := fmt.Errorf("this kernel lacks the tracepoint %s", strings.Join(slices.Sorted(slices.Values(missing)), ", "))
	kprobes := p.of(param, "kprobe")
	if len(kprobes) == 0 {
		return Events{}, err
	}
	for program, function := range kprobes {
		name, none := m.Kprobe(function)
		if none != nil {
			return Events{}, fmt.Errorf("%w, and a kprobe cannot replace it: %w", err, none)
		}
		kprobes[program] = name
	}
	return Events{Kprobes: true, targets: kprobes}, nil
}

// of returns a parameter's events of one kind from the metadata, by program.
func (p parameters) of(param, kind string) map[string]string {
	events := map[string]string{}
	for program := range p.metadata.GetStringMap("programs") {
		if event := p.program(program, kind); event != "" && p.program(program, "param") == param {
			events[program] = event
		}
	}
	return events
}

// program returns a member of a program's entry in the metadata.
func (p parameters) program(program, member string) string {
	return p.metadata.GetString("programs." + program + "." + member)
}

// hasTracepoint reports whether the kernel has this tracepoint, and raw_tp programs can be attached to it.
func hasTracepoint(name string) bool {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var typ *btf.Typedef
	return spec.TypeByName("btf_trace_"+name, &typ) == nil
}

// kprobe returns the compiler's name of a kernel function, after it has checked that a program attached there runs. A kernel
// can refuse individual functions. Each thread switch must call the function.
func kprobe(function string) (name string, err error) {
	if _, err := os.Stat("/sys/bus/event_source/devices/kprobe"); err != nil {
		return "", errors.New("the kernel was built without CONFIG_KPROBE_EVENTS, or /sys is not the host's")
	}
	if name, err = stack.KernelFunction(function); err != nil {
		return "", err
	}
	err = try(ebpf.Kprobe, func(p *ebpf.Program) (link.Link, error) { return link.Kprobe(name, p, nil) })
	if errors.Is(err, errNeverRan) {
		err = fmt.Errorf("%w: check the sysctl kernel.ftrace_enabled and the file kprobes/enabled in debugfs", err)
	}
	if err != nil {
		return "", fmt.Errorf("trying a kprobe on %s: %w", name, err)
	}
	return name, nil
}

var errNeverRan = errors.New("its program was attached, but never ran")

// try attaches a program to an event that occurs at each thread switch, and waits until it has run. A kernel can accept a
// program but never run it.
func try(typ ebpf.ProgramType, attach func(*ebpf.Program) (link.Link, error)) (err error) {
	ran, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("creating a map: %w", err)
	}
	defer ran.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: typ, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, ran.FD(), 0), asm.Mov.Imm(asm.R2, 1), asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("loading a program: %w", err)
	}
	defer program.Close()
	attached, err := attach(program)
	if err != nil {
		return fmt.Errorf("attaching a program: %w", err)
	}
	defer func() { err = errors.Join(err, attached.Close()) }()
	for range 20 {
		time.Sleep(time.Millisecond) // causes a thread switch
		var n uint64
		if err := ran.Lookup(uint32(0), &n); err != nil || n != 0 {
			return err
		}
	}
	return errNeverRan
}
