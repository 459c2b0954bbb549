package main

import (
	"context"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// goLimits bound the reading of a Go program, which is in memory meanwhile.
var goLimits = symtab.Limits{Symbols: 1 << 20, Names: 64 << 20, Read: 256 << 20, Memory: 64 << 20}

// goTimeout bounds it in time.
const goTimeout = 5 * time.Second

// withGoLeaves returns a view of a Go program in which the profiler finds the callers of functions that make no frame. It follows
// frame pointers in all functions except those of assembly files. So it misses the caller of a function that calls nothing. In
// the view all these are in such a file. Any other file is returned unchanged. On other architectures the profiler makes no such
// difference.
func withGoLeaves(f process.ReadAtCloser, size int64) process.ReadAtCloser {
	if runtime.GOARCH != "amd64" {
		return f
	}
	ctx, cancel := context.WithTimeout(context.Background(), goTimeout)
	defer cancel()
	leaves, err := parse.ReadGoLeaves(ctx, f, size, goLimits)
	if err != nil || len(leaves.Functions) == 0 {
		return f
	}
	patches := make([]patch, 0, len(leaves.Functions))
	for _, l := range leaves.Functions {
		var unit [4]byte
		leaves.Order.PutUint32(unit[:], leaves.Assembly-uint32(l.File))
		patches = append(patches, patch{int64(l.UnitAt), string(unit[:])})
	}
	slices.SortFunc(patches, func(a, b patch) int { return int(a.at - b.at) })
	return &patched{f, patches}
}
