package fieldmap

import (
	"testing"
	"unsafe"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// handed is a Stacks that only knows stack 17, and stack 18, whose functions have no names yet.
type handed struct{}

func (handed) Frames(dst []profile.Frame, id uint64, form FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed Unnamed) {
	switch {
	case id == 18:
		kernel := profile.Frame{Name: "vfs_read", Type: profile.FrameKernel}
		return append(dst, kernel, profile.Frame{Address: 1}, profile.Frame{Address: 2}), stack.OK, &unread{}
	case id != 17:
		return dst, stack.Partial, nil
	case form == (FileForm{Offsets: true}):
		return append(dst, profile.Frame{Name: "offsets without files"}), stack.OK, nil
	}
	return append(dst, profile.Frame{Name: "vfs_read"}, profile.Frame{Name: "hash_orders", Type: "cpython"}), stack.OK, nil
}

// unread is a stack whose first name is known at the first call, and whose second name at the second call. With inlined
// functions, it then has three frames.
type unread struct{ calls int }

func (u *unread) UserFrames(dst []profile.Frame) (frames []profile.Frame, pending bool) {
	if u.calls++; u.calls == 1 {
		return append(dst, profile.Frame{Name: "work"}, profile.Frame{Address: 2}), true
	}
	return append(dst, profile.Frame{Name: "inlined"}, profile.Frame{Name: "work"}, profile.Frame{Name: "loop"}), false
}

func (*unread) Size() int { return 100 }

// TestLateNames checks that the names that become known within a window are in its samples.
func TestLateNames(t *testing.T) {
	for _, whole := range []bool{false, true} {
		fields, member := "unwound_id", "unwound_id"
		if whole {
			fields, member = "kern_stack,user_stack_raw.symbols", "user_stack_raw.whole"
		}
		s := profileCPU(t, "annotations: {profiles.stack-fields: '"+fields+"', profiles.value-field: samples}")
		var err error
		if whole {
			_, err = s.GetField("user_stack_raw").AddSubField(WholeStack, api.Kind_Uint64)
		} else {
			_, err = s.AddField("unwound_id", api.Kind_Uint64, datasource.WithTags(StackTag))
		}
		require.NoError(t, err)
		o := testOptions()
		o.Stacks, o.Exporter.MarkIncomplete = handed{}, true
		sm := compile(t, s, o).Sample(s.row(with(map[string]any{member: uint64(18)})))
		require.Equal(t, profile.Whole, sm.Fate)
		require.Equal(t, len(sm.Stack)-2, sm.LaterFrom)
		require.Equal(t, len(sm.Stack), sm.LaterTo)
		require.Equal(t, "vfs_read", sm.Stack[sm.LaterFrom-1].Name, "kernel functions have names")
		require.Equal(t, 100, sm.Later.Size())

		frames, fate, all := sm.Later.Frames([]profile.Frame{{Name: "of another sample"}}, false)
		require.Equal(t, profile.Whole, fate)
		require.False(t, all)
		require.Equal(t, []profile.Frame{{Name: "of another sample"}, {Name: "work"}, {Address: 2}}, frames)
		want := []string{"inlined", "work", "loop"}
		if whole { // the outermost function is not where programs begin
			want = append(want, "[incomplete]")
		}
		frames, fate, all = sm.Later.Frames(nil, true)
		require.Equal(t, whole, fate == profile.Incomplete)
		require.True(t, all)
		require.Equal(t, want, frameNames(profile.Sample{Stack: frames}))
	}
}

// TestLaterKeepsNames checks that frames that wait for names do not change with the text of their row, which is reused.
func TestLaterKeepsNames(t *testing.T) {
	text := []byte("work")
	l := newLater(&frameSettings{}, &userFrames{}, []profile.Frame{{Name: unsafe.String(&text[0], len(text))}})
	copy(text, "rest")
	require.Equal(t, []profile.Frame{{Name: "work"}}, l.read)
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
		sm := compile(t, s, o).Sample(s.row(with(map[string]any{"unwound_id": id})))
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
	sm := compile(t, s, o).Sample(s.row(with(map[string]any{"unwound_id": uint64(17)})))
	require.Equal(t, []string{"offsets without files"}, frameNames(sm))

	s = profileCPU(t, "annotations: {profiles.stack-fields: 'user_stack_raw.symbols', profiles.value-field: samples}")
	_, err = s.GetField("user_stack_raw").AddSubField(WholeStack, api.Kind_Uint64)
	require.NoError(t, err)
	sm = compile(t, s, o).Sample(s.row(with(map[string]any{"user_stack_raw.whole": uint64(17)})))
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
		sm := plan.Sample(row)
		require.Equal(t, want, frameNames(sm), id)
		keys[plan.StackKey(row)] = id
	}
	require.Len(t, keys, 3, "stacks by frame pointers do not tell them apart")
}
