package main

import (
	"os"
	"reflect"
	"runtime"
	"testing"

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
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if framed("a") == 0 {
		t.Error("no sum")
	}
	rules := func(r process.ReadAtCloser) func(function any) stackdeltatypes.UnwindInfo {
		ref := pfelf.NewReferenceWithOpenFunc(exe, pfelf.SystemOpener, func() (*pfelf.File, error) { return pfelf.NewFile(r, 0, false) })
		defer ref.Close()
		data, err := elfunwindinfo.ExtractELF(ref)
		if err != nil {
			t.Fatal(err)
		}
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
	if got := plain(frameless); got != stackdeltatypes.UnwindInfoFramePointer {
		t.Errorf("without the view: %+v: the view is not needed any more", got)
	}
	if got, want := view(frameless), (stackdeltatypes.UnwindInfo{BaseReg: support.UnwindRegSp, Param: 8}); got != want {
		t.Errorf("a function without a frame: %+v, not %+v", got, want)
	}
	if got := view(framed); got != stackdeltatypes.UnwindInfoFramePointer {
		t.Errorf("a function with a frame: %+v", got)
	}
}

// Files that are not Go programs are returned unchanged.
func TestGoLeavesOfOthers(t *testing.T) {
	for _, path := range []string{"/bin/sh", "goleaves_test.go"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if withGoLeaves(f, st.Size()) != process.ReadAtCloser(f) {
			t.Errorf("a view of %s", path)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
