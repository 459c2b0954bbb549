package fieldmap

import (
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// handed is a Stacks that only knows stack 17.
type handed struct{}

func (handed) Frames(dst []profile.Frame, id uint64, form FileForm) (frames []profile.Frame, outcome stack.Outcome, pending bool) {
	if id != 17 {
		return dst, stack.Partial, false
	}
	if form == (FileForm{Offsets: true}) {
		return append(dst, profile.Frame{Name: "offsets without files"}), stack.OK, false
	}
	return append(dst, profile.Frame{Name: "vfs_read"}, profile.Frame{Name: "hash_orders", Type: "cpython"}), stack.OK, false
}

// TestHandedStack checks that a stack from an operator is the whole stack of a sample. Its text is only for printed rows.
func TestHandedStack(t *testing.T) {
	s := profileCPU(t, "annotations: {profiles.stack-fields: 'kern_stack,user_stack_raw.symbols,unwound_id', profiles.value-field: samples}")
	_, err := s.AddField("unwound_id", api.Kind_Uint64, datasource.WithTags(StackTag))
	require.NoError(t, err)
	o := testOptions()
	o.Stacks = handed{}
	for id, want := range map[uint64][]string{
		1:  {"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main", "[incomplete]"},
		17: {"vfs_read", "hash_orders"},
	} {
		sm, _ := compile(t, s, o).Sample(s.row(with(map[string]any{"unwound_id": id})))
		require.Equal(t, want, frameNames(sm), id)
	}
}

// TestHandedForm checks that the exporter's settings apply to stacks from an operator.
func TestHandedForm(t *testing.T) {
	o := testOptions()
	o.Stacks, o.Exporter.ProcMappings, o.Exporter.OffsetAddresses = handed{}, false, true
	s := profileCPU(t, "annotations: {profiles.stack-fields: 'unwound_id', profiles.value-field: samples}")
	_, err := s.AddField("unwound_id", api.Kind_Uint64, datasource.WithTags(StackTag))
	require.NoError(t, err)
	sm, _ := compile(t, s, o).Sample(s.row(with(map[string]any{"unwound_id": uint64(17)})))
	require.Equal(t, []string{"offsets without files"}, frameNames(sm))

	s = profileCPU(t, "annotations: {profiles.stack-fields: 'user_stack_raw.symbols', profiles.value-field: samples}")
	_, err = s.GetField("user_stack_raw").AddSubField(WholeStack, api.Kind_Uint64)
	require.NoError(t, err)
	sm, _ = compile(t, s, o).Sample(s.row(with(map[string]any{"user_stack_raw.whole": uint64(17)})))
	require.Equal(t, []string{"offsets without files"}, frameNames(sm))
}

// TestWholeStack checks that an operator's stack replaces the user stack, and that no other names are looked up for it.
func TestWholeStack(t *testing.T) {
	s := profileCPU(t, "annotations: {profiles.stack-fields: 'kern_stack,user_stack_raw.symbols', profiles.value-field: samples}")
	_, err := s.GetField("user_stack_raw").AddSubField(WholeStack, api.Kind_Uint64)
	require.NoError(t, err)
	o := testOptions()
	o.Stacks = handed{}
	plan := compile(t, s, o)
	keys := map[uint64]uint64{}
	for id, want := range map[uint64][]string{
		0:  {"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main"},
		1:  {"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "main.work", "main.main"},
		17: {"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "vfs_read", "hash_orders"},
	} {
		row := s.row(with(map[string]any{"user_stack_raw.whole": id}))
		sm, _ := plan.Sample(row)
		require.Equal(t, want, frameNames(sm), id)
		keys[plan.StackKey(row)] = id
	}
	require.Len(t, keys, 3, "stacks by frame pointers do not tell them apart")
}
