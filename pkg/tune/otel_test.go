package tune

import (
	"bytes"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ustack"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"oras.land/oras-go/v2/content/memory"
)

// program returns a program that refers to maps.
func program(typ ebpf.ProgramType, maps ...string) *ebpf.ProgramSpec {
	p := &ebpf.ProgramSpec{Type: typ}
	for _, name := range maps {
		p.Instructions = append(p.Instructions, asm.LoadMapPtr(asm.R1, 0).WithReference(name))
	}
	return p
}

// TestOtelChains checks that a gadget's programs call the chain of their type, and that an error names a program that has no
// chain.
func TestOtelChains(t *testing.T) {
	exit := program(ebpf.TracePoint, "sizes")
	for _, tc := range []struct {
		programs map[string]*ebpf.ProgramSpec
		want     []string
		refused  string
	}{
		{programs: map[string]*ebpf.ProgramSpec{"malloc": program(ebpf.Kprobe, "ig_ustack", "otel_tc_kprobe"), "free": program(ebpf.Kprobe, "ig_ustack", "otel_tc_kprobe"), "exit": exit}, want: []string{"kprobe"}},
		{programs: map[string]*ebpf.ProgramSpec{"cpu": program(ebpf.PerfEvent, "ig_ustack", "otel_tc_perf"), "malloc": program(ebpf.Kprobe, "otel_tc_kprobe", "ig_ustack")}, want: []string{"kprobe", "perf"}},
		{programs: map[string]*ebpf.ProgramSpec{"ig_open_x": program(ebpf.TracePoint, "ig_ustack"), "malloc": program(ebpf.Kprobe, "ig_ustack", "otel_tc_kprobe")}, refused: "the program ig_open_x has the type TracePoint, but Inspektor Gadget supports whole stacks only for kprobes, uprobes and perf events"},
		{programs: map[string]*ebpf.ProgramSpec{"cpu": program(ebpf.PerfEvent, "ig_ustack", "otel_tc_kprobe")}, refused: "the program cpu has the type PerfEvent, but Inspektor Gadget supports whole stacks only for kprobes, uprobes and perf events"},
		{programs: map[string]*ebpf.ProgramSpec{"exit": exit}, refused: "the gadget collects no user stacks"},
	} {
		got, err := otelChains(&ebpf.CollectionSpec{Programs: tc.programs})
		require.Equal(t, tc.want, got)
		if tc.refused != "" {
			require.EqualError(t, err, tc.refused)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestOtelFlags checks that flags without effect are refused before the gadget is loaded.
func TestOtelFlags(t *testing.T) {
	object, err := os.ReadFile("../../cmd/unwinder/bpf/entry_amd64.o")
	require.NoError(t, err)
	layer := ocispec.Descriptor{MediaType: ebpfMediaType, Digest: digest.FromBytes(object), Size: int64(len(object))}
	image := memory.New()
	require.NoError(t, image.Push(t.Context(), layer, bytes.NewReader(object)))
	for _, tc := range []struct {
		values        api.ParamValues
		program, user string
	}{
		{api.ParamValues{"collect-otel-stack": "true"}, "--collect-otel-stack: the gadget collects no user stacks: without the flag, stacks are collected with frame pointers", ""},
		{api.ParamValues{"symbolizers": "symtab,otel-ebpf-profiler"}, "", "--symbolizers=otel-ebpf-profiler needs the flag --collect-otel-stack: set this flag, or remove --symbolizers"},
		{api.ParamValues{"collect-otel-stack": "false", "symbolizers": "auto"}, "", ""},
		{nil, "", ""},
	} {
		gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
		_, program := (&programs{noProgram{}}).InstantiateImageOperator(gadgetCtx, image, layer, tc.values)
		_, user := userStacks{&ustack.Operator{}}.InstantiateDataOperator(gadgetCtx, tc.values)
		for want, err := range map[*string]error{&tc.program: program, &tc.user: user} {
			if *want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, *want)
			}
		}
		require.Empty(t, OtelChains(gadgetCtx))
	}
}
