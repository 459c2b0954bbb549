package main

import (
	"os"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// frameless calls nothing.
//
//go:noinline
func frameless(text string) (h uint32) {
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return h
}

// framed has a frame and calls a function.
//
//go:noinline
func framed(text string) uint32 { return frameless(text) + 1 }

// TestGoLeaves compares how the profiler unwinds functions of this test program with and without the view.
func TestGoLeaves(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the profiler makes a difference between files on amd64 alone")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	f, err := os.Open(exe)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	assert.NotZero(t, framed("a"))
	rules := func(r process.ReadAtCloser) func(function any) stackdeltatypes.UnwindInfo {
		ref := pfelf.NewReferenceWithOpenFunc(exe, pfelf.SystemOpener, func() (*pfelf.File, error) { return pfelf.NewFile(r, 0, false) })
		defer ref.Close()
		data, err := elfunwindinfo.ExtractELF(ref)
		require.NoError(t, err)
		t.Logf("%d rules", data.NumDeltas)
		return func(function any) stackdeltatypes.UnwindInfo {
			addr := uint64(reflect.ValueOf(function).Pointer())
			for _, b := range data.Blocks {
				if b.Start <= addr && addr < b.End {
					return b.Deltas[0].Info
				}
			}
			t.Fatalf("no rule for %#x", addr)
			return stackdeltatypes.UnwindInfo{}
		}
	}
	plain, view := rules(f), rules(withGoLeaves(f, st.Size()))
	assert.Equal(t, stackdeltatypes.UnwindInfoFramePointer, plain(frameless), "without the view: the view is not needed any more")
	assert.Equal(t, stackdeltatypes.UnwindInfo{BaseReg: support.UnwindRegSp, Param: 8}, view(frameless))
	assert.Equal(t, stackdeltatypes.UnwindInfoFramePointer, view(framed))
}

// Files that are not Go programs are returned unchanged.
func TestGoLeavesOfOthers(t *testing.T) {
	for _, path := range []string{"/bin/sh", "goleaves_test.go"} {
		f, err := os.Open(path)
		require.NoError(t, err)
		st, err := f.Stat()
		require.NoError(t, err)
		assert.Same(t, f, withGoLeaves(f, st.Size()), path)
		assert.NoError(t, f.Close())
	}
}
