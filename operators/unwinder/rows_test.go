package unwinder

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// withFiles are the defaults of the exporter's settings.
var withFiles = fieldmap.FileForm{Files: true}

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
	frames, outcome, unnamed := r.framesOf(nil, s, withFiles)
	require.Equal(t, stack.OK, outcome)
	require.Nil(t, unnamed)
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
	frames, _, _ = r.framesOf(nil, s, withFiles)
	require.Len(t, frames, 3, "without the kernel's")
	require.Equal(t, "hash_orders", frames[0].Name)
	s.Abort = 4012
	_, outcome, _ = r.framesOf(nil, s, withFiles)
	require.Equal(t, stack.Truncated, outcome)
	_, outcome, _ = r.framesOf(nil, nil, withFiles)
	require.Equal(t, stack.Lost, outcome)
}

// TestFilesOfRows checks the settings mappings_from_proc and file_addresses.
func TestFilesOfRows(t *testing.T) {
	m := &wire.Mapping{File: &wire.File{Name: "app", Path: "/opt/app", GNUBuildID: "0af1"}, Start: 0x401000, End: 0x402000, Offset: 0x1000}
	s := &wire.Stack{Frames: []*wire.Frame{
		{Type: wire.FrameGo, Function: "main.work", Address: 0x401020, Mapping: m}, {Type: wire.FrameNative, Address: 0x401010, Mapping: m},
		{Type: wire.FrameNative, Address: 0x403000, Mapping: m},
	}}
	frames := func(form fieldmap.FileForm) (list []profile.Frame) {
		list, _, _ = new(rows).framesOf(nil, s, form)
		return list
	}
	require.Equal(t, []profile.Frame{{Name: "main.work", Type: profile.FrameGo}, {Name: "[app]", Type: profile.FrameNative}, {Name: "[app]", Type: profile.FrameNative}},
		frames(fieldmap.FileForm{}), "neither paths nor build IDs nor addresses")
	var addresses []uint64
	for _, f := range frames(fieldmap.FileForm{Files: true, Offsets: true}) {
		require.Equal(t, "/opt/app", f.Mapping.File)
		addresses = append(addresses, f.Address)
	}
	require.Equal(t, []uint64{0x1020, 0x1010, 0}, addresses, "an address outside its mapping has no offset")
}
