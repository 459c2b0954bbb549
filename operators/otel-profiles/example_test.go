package otelprofiles_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource/compat"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

var update = flag.Bool("update", false, "write the example of the reference")

// exampleRow is a row of the gadget profile_cpu, as Inspektor Gadget prints it in JSON, without irrelevant fields. It comes
// from Debian's kernel 6.1 and a pod of containerd's CRI. There was no API server, so node, owner and labels are invented. The
// build IDs have the same form as in Inspektor Gadget's own gadgets with --collect-build-id: the ID of the program's file, and
// file offsets.
const exampleRow = `{
  "k8s": {
    "node": "node-1", "namespace": "shop", "podName": "cart-7d4b", "containerName": "burner",
    "owner": {"kind": "Deployment", "name": "cart"},
    "podLabels": "app=cart,pod-template-hash=7d4b,tier=web"
  },
  "runtime": {
    "runtimeName": "containerd",
    "containerId": "eb5653f1dadd117ce013b948935a1f68703af5c763c41fb5c135936ae8f03aa3",
    "containerName": "burner",
    "containerImageName": "test.local/burn:1",
    "containerImageDigest": "sha256:15daa88253698e5e965de1e662121f93424629546d529c55bb37a8a4829cf7c5"
  },
  "proc": {"comm": "burn", "pid": 283, "mntns_id": 4026532234},
  "samples": 2,
  "kern_stack_raw": 2087398768,
  "kern_stack": "exit_to_user_mode_prepare; irqentry_exit_to_user_mode; asm_sysvec_reschedule_ipi; ",
  "user_stack_raw": {
    "stack_id": 517805158,
    "inode": 369,
    "symbols": "burn_inner; burn_outer; main; __libc_start_call_main; 0x4015a0; 0xbe552274c0854800; ",
    "addresses": "0x0000000000401623; 0x0000000000401668; 0x0000000000401701; 0x0000000000401a54; 0x00000000004015a0; 0xbe552274c0854800; ",
    "buildid": "4ed5adeba03c7de995994c040a0a1fadaae44560 +1623; 4ed5adeba03c7de995994c040a0a1fadaae44560 +1668; 4ed5adeba03c7de995994c040a0a1fadaae44560 +1701; 4ed5adeba03c7de995994c040a0a1fadaae44560 +1a54; 4ed5adeba03c7de995994c040a0a1fadaae44560 +15a0; be552274c0854800; "
  }
}`

const (
	exampleFile  = "../../docs/concepts.md"
	exampleBegin = "<!-- begin example -->\n"
	exampleEnd   = "<!-- end example -->"
)

// TestExample sends exampleRow through the operator to a receiver. It compares the message that arrives with the example in the
// reference.
//
//	go test ./operators/otel-profiles -run TestExample -update
func TestExample(t *testing.T) {
	if _, err := os.ReadFile("/sys/kernel/notes"); err != nil {
		t.Skip("the message names the running kernel's build ID: ", err)
	}
	r := startReceiver(t)
	op := settings(t, exporter("mine", r.Addr(), "        pod_labels: [app, tier]\n"))
	log := sendRow(t, op, "../../gadgets/profile_cpu/gadget.yaml", exampleRow)
	require.Empty(t, r.Findings())
	require.Len(t, r.Requests(), 1, log)

	message := renderer{dictionary.Of(r.Requests()[0])}.request(r.Requests()[0])
	content := "\n```json\n" + exampleRow + "\n```\n\nThe exporter turns this row into a resource and a profile:\n\n```text\n" + message + "```\n\n"
	text, err := os.ReadFile(exampleFile)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), exampleBegin)
	require.True(t, ok, "the reference has no %q", exampleBegin)
	got, after, ok := strings.Cut(rest, exampleEnd)
	require.True(t, ok, "the reference has no %q", exampleEnd)
	if *update {
		require.NoError(t, os.WriteFile(exampleFile, []byte(before+exampleBegin+content+exampleEnd+after), 0o644))
		return
	}
	require.Equal(t, content, got, "run: go test ./operators/otel-profiles -run TestExample -update")
}

// sendRow runs op with a gadget that has this metadata and emits one row, given as JSON. It returns the gadget's log.
func sendRow(t *testing.T, op operators.DataOperator, metadataFile, row string) string {
	t.Helper()
	metadata := viper.New()
	metadata.SetConfigFile(metadataFile)
	require.NoError(t, metadata.ReadInConfig())
	fields := map[string]any{}
	decoder := json.NewDecoder(strings.NewReader(row))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&fields))

	var ds datasource.DataSource
	emitter := simple.New("emitter", simple.WithPriority(1),
		simple.OnInit(func(gadgetCtx operators.GadgetContext) error {
			var err error
			if ds, err = gadgetCtx.RegisterDataSource(datasource.TypeArray, "samples"); err != nil {
				return err
			}
			return addFields(ds)
		}),
		simple.OnStart(func(gadgetCtx operators.GadgetContext) error {
			p, err := ds.NewPacketArray()
			if err != nil {
				return err
			}
			d := p.New()
			if err := fill(ds, d, "", fields); err != nil {
				return err
			}
			p.Append(d)
			gadgetCtx.Cancel()
			return ds.EmitAndRelease(p)
		}))
	g := &gadgettest.Gadget{}
	gc := g.Make(t.Context(), op, gadgetcontext.WithDataOperators(emitter, op))
	gc.SetVar("config", metadata)
	require.NoError(t, gc.Run(gadgettest.Params("mine")))
	return g.Log.String()
}

// addFields adds the fields that the eBPF, ustack and enrichment operators add to profile_cpu's rows.
func addFields(ds datasource.DataSource) error {
	if _, err := compat.WrapAccessors(ds, nil, nil); err != nil {
		return err
	}
	var errs []error
	add := func(parent datasource.FieldAccessor, name string, kind api.Kind, tags ...string) datasource.FieldAccessor {
		addTo := ds.AddField
		if parent != nil {
			addTo = parent.AddSubField
		}
		opts := []datasource.FieldOption{datasource.WithTags(tags...)}
		if kind == api.Kind_Invalid {
			opts = append(opts, datasource.WithFlags(datasource.FieldFlagEmpty))
		}
		f, err := addTo(name, kind, opts...)
		errs = append(errs, err)
		return f
	}
	proc := add(nil, "proc", api.Kind_Invalid)
	add(proc, "comm", api.Kind_String)
	add(proc, "pid", api.Kind_Uint32)
	add(proc, "mntns_id", api.Kind_Uint64, "type:gadget_mntns_id")
	add(nil, "samples", api.Kind_Uint64)
	add(nil, "kern_stack_raw", api.Kind_Uint32, "type:"+ebpftypes.KernelStackTypeName)
	add(nil, "kern_stack", api.Kind_String)
	add(nil, "unwound_id", api.Kind_Uint64, "type:profiles_stack")
	user := add(nil, "user_stack_raw", api.Kind_Invalid, "type:"+ebpftypes.UserStackTypeName)
	add(user, "stack_id", api.Kind_Uint32)
	add(user, "inode", api.Kind_Uint64)
	for _, name := range []string{"symbols", "addresses", "buildid"} {
		add(user, name, api.Kind_String)
	}
	return errors.Join(errs...)
}

// fill sets the fields to the JSON values of the same names.
func fill(ds datasource.DataSource, d datasource.Data, prefix string, values map[string]any) error {
	for name, value := range values {
		if members, ok := value.(map[string]any); ok {
			if err := fill(ds, d, prefix+name+".", members); err != nil {
				return err
			}
			continue
		}
		f := ds.GetField(prefix + name)
		if f == nil {
			return fmt.Errorf("no field %q", prefix+name)
		}
		if s, ok := value.(string); ok {
			if err := f.PutString(d, s); err != nil {
				return err
			}
			continue
		}
		n, err := strconv.ParseUint(fmt.Sprint(value), 10, 64)
		if err != nil {
			return err
		}
		if f.Type() == api.Kind_Uint32 {
			err = f.PutUint32(d, uint32(n))
		} else {
			err = f.PutUint64(d, n)
		}
		if err != nil {
			return fmt.Errorf("field %q: %w", prefix+name, err)
		}
	}
	return nil
}

// renderer writes a message as text. It replaces indices with the entries that they refer to, and values that depend on the run
// or the machine with placeholders in angle brackets.
type renderer struct{ dictionary.Dictionary }

func (r renderer) request(req *collectorpb.ExportProfilesServiceRequest) string {
	var b strings.Builder
	line := func(depth int, format string, args ...any) {
		b.WriteString(strings.TrimRight(strings.Repeat("  ", depth)+fmt.Sprintf(format, args...), " ") + "\n")
	}
	for _, rp := range req.GetResourceProfiles() {
		line(0, "resource (schema %s)", rp.GetSchemaUrl())
		for _, kv := range rp.GetResource().GetAttributes() {
			value := r.Text(kv.GetValue())
			if kv.GetKey() == "host.arch" {
				value = "<this machine's>"
			}
			line(1, "%-24s %s", kv.GetKey(), value)
		}
		for _, sp := range rp.GetScopeProfiles() {
			line(0, "scope %s, version %s", sp.GetScope().GetName(), sp.GetScope().GetVersion())
			for _, p := range sp.GetProfiles() {
				line(1, "profile")
				line(2, "%-22s <%d random bytes>", "profile_id", len(p.GetProfileId()))
				line(2, "%-22s <start and length of the window>", "time, duration")
				line(2, "%-22s %s", "sample type, unit", r.valueType(p.GetSampleType()))
				line(2, "%-22s %d, %s", "period, type, unit", p.GetPeriod(), r.valueType(p.GetPeriodType()))
				for _, s := range p.GetSamples() {
					line(2, "sample")
					line(3, "%-20s %d", "values", s.GetValues())
					line(3, "%-20s %s", "attributes", strings.Join(r.attributes(s.GetAttributeIndices()), ", "))
					line(3, "stack, leaf first: function, address, mapping, frame type")
					for _, l := range r.GetStackTable()[s.GetStackIndex()].GetLocationIndices() {
						line(4, "%s", r.location(r.GetLocationTable()[l]))
					}
				}
			}
		}
	}
	line(0, "mappings")
	for i, m := range r.GetMappingTable()[1:] {
		attributes := r.attributes(m.GetAttributeIndices())
		name := r.Str(m.GetFilenameStrindex())
		if name == "[kernel.kallsyms]" {
			for j, a := range attributes {
				if key, _, ok := strings.Cut(a, "="); ok && key == "process.executable.build_id.gnu" {
					attributes[j] = key + "=<the running kernel's>"
				}
			}
		}
		if name == "" {
			name = "(no name)"
		}
		line(1, "#%d %-18s %s", i+1, name, strings.Join(attributes, ", "))
	}
	return b.String()
}

func (r renderer) valueType(v *profilespb.ValueType) string {
	return r.Str(v.GetTypeStrindex()) + ", " + r.Str(v.GetUnitStrindex())
}

func (r renderer) attributes(indices []int32) []string {
	list := r.Attributes(indices)
	out := make([]string, 0, len(list))
	for _, key := range slices.Sorted(maps.Keys(list)) {
		out = append(out, key+"="+list[key])
	}
	return out
}

func (r renderer) location(l *profilespb.Location) string {
	name, mapping := "-", "-"
	for _, line := range l.GetLines() {
		name = r.Str(r.GetFunctionTable()[line.GetFunctionIndex()].GetNameStrindex())
	}
	address := "-"
	if l.GetAddress() != 0 {
		address = fmt.Sprintf("0x%x", l.GetAddress())
	}
	if l.GetMappingIndex() != 0 {
		mapping = fmt.Sprintf("#%d", l.GetMappingIndex())
	}
	kind := strings.TrimPrefix(strings.Join(r.attributes(l.GetAttributeIndices()), ", "), "profile.frame.type=")
	return fmt.Sprintf("%-28s %-20s %-3s %s", name, address, mapping, kind)
}
