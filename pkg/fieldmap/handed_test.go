package fieldmap

import (
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// handed has the stack 17.
type handed struct{}

func (handed) Frames(dst []profile.Frame, id uint64) (frames []profile.Frame, outcome stack.Outcome, pending bool) {
	if id != 17 {
		return dst, stack.Partial, false
	}
	return append(dst, profile.Frame{Name: "vfs_read"}, profile.Frame{Name: "hash_orders", Type: "cpython"}), stack.OK, false
}

// A stack that an operator hands over is all there is: the text of it is for those who read rows.
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
