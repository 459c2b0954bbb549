package unwinder

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// A backend gets kernel functions first, and no address that has a meaning only inside the process.
func TestFramesOfRows(t *testing.T) {
	file := &wire.File{Name: "app", Path: "/opt/app", GNUBuildID: "0af1"}
	s := &wire.Stack{ID: 3, Frames: []*wire.Frame{
		{Type: wire.FrameKernel, Function: "vfs_read"}, {Type: wire.FrameKernel},
		{Type: wire.FramePython, Function: "hash_orders", File: "orders.py", Line: 12, Address: 5},
		{Type: wire.FrameNative, Address: 0x1234, Mapping: &wire.Mapping{File: file}},
		{Type: wire.FrameNative, Address: 0x7f0000001234},
	}}
	r := &rows{kernel: func() *stack.Kernel { return stack.NewKernel(stack.KernelOptions{KeepTracing: true}) }}
	frames, outcome, pending := r.framesOf(nil, s)
	require.Equal(t, stack.OK, outcome)
	require.False(t, pending)
	require.Len(t, frames, 5)
	require.Equal(t, "vfs_read", frames[0].Name)
	require.Equal(t, stack.Unknown, frames[1].Name)
	require.Equal(t, []profile.Frame{
		{Name: "hash_orders", File: "orders.py", Line: 12, Type: "cpython"},
		{Type: profile.FrameNative, Address: 0x1234, Mapping: profile.Mapping{File: "/opt/app", GNUBuildID: "0af1", HTLHash: file.HashText()}},
		{Name: stack.Unknown, Type: profile.FrameNative},
	}, frames[2:])
	require.Equal(t, []string{"vfs_read", stack.Unknown, "hash_orders", "app+0x1234", stack.Unknown, ""}, strings.Split(r.format(s.Frames), "; "))
	r.userOnly = true
	frames, _, _ = r.framesOf(nil, s)
	require.Len(t, frames, 3, "without the kernel's")
	require.Equal(t, "hash_orders", frames[0].Name)
	s.Abort = 4012
	_, outcome, _ = r.framesOf(nil, s)
	require.Equal(t, stack.Truncated, outcome)
	_, outcome, _ = r.framesOf(nil, nil)
	require.Equal(t, stack.Lost, outcome)
}
