package tune

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/oci"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
)

// OtelFlag is Inspektor Gadget's flag that makes a gadget's programs call an unwinder.
const OtelFlag = "collect-otel-stack"

// otelVar is the gadget's variable that holds the chains.
const otelVar = "otel-profiles/otel-chains"

// OtelChains returns the unwinder chains that a gadget's programs call. The names are those in Inspektor Gadget's headers:
// kprobe, perf. It returns none if the run does not need them.
func OtelChains(gadgetCtx operators.GadgetContext) []string {
	return variable[[]string](gadgetCtx, otelVar)
}

// noteOtelChains records the chains of a gadget's programs if the run requests whole stacks. It returns an error if the
// programs cannot get whole stacks.
func noteOtelChains(gadgetCtx operators.GadgetContext, target oras.ReadOnlyTarget, layer ocispec.Descriptor, values api.ParamValues) error {
	key := OtelFlag
	if p, ok := parametersOf(gadgetCtx); ok {
		key = cmp.Or(p.entry("collect_otel_stack", "key"), OtelFlag)
	}
	if asked, err := strconv.ParseBool(values[key]); err != nil || !asked {
		return nil
	}
	content, err := oci.GetContentFromDescriptor(gadgetCtx.Context(), target, layer)
	if err != nil {
		return fmt.Errorf("--%s: reading the gadget's programs: %w", key, err)
	}
	defer content.Close()
	object, err := io.ReadAll(content)
	if err != nil {
		return fmt.Errorf("--%s: reading the gadget's programs: %w", key, err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return fmt.Errorf("--%s: reading the gadget's programs: %w", key, err)
	}
	chains, err := otelChains(spec)
	if err != nil {
		return fmt.Errorf("--%s: %w: without the flag, stacks are collected with frame pointers", key, err)
	}
	gadgetCtx.SetVar(otelVar, chains)
	return nil
}

// otelChains returns the chains that the programs of an object call, or an error if a program gets no whole stacks.
func otelChains(spec *ebpf.CollectionSpec) (chains []string, err error) {
	arrays := map[ebpf.ProgramType]string{ebpf.Kprobe: symbolizer.OtelTailCallForKprobeMapName, ebpf.PerfEvent: symbolizer.OtelTailCallForPerfMapName}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		program := spec.Programs[name]
		refers := program.Instructions.ReferenceOffsets()
		if _, takes := refers[ebpftypes.UserStackMapName]; !takes {
			continue
		}
		array := arrays[program.Type]
		if _, calls := refers[array]; !calls {
			return nil, fmt.Errorf("the program %s has the type %s, but Inspektor Gadget supports whole stacks only for kprobes, uprobes and perf events", name, program.Type)
		}
		chains = append(chains, strings.TrimPrefix(array, "otel_tc_"))
	}
	if len(chains) == 0 {
		return nil, errors.New("the gadget collects no user stacks")
	}
	slices.Sort(chains)
	return slices.Compact(chains), nil
}
