package main

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// goLimits limits how a Go program is read, because its tables are in memory during the read.
var goLimits = symtab.Limits{Symbols: 1 << 20, Names: 64 << 20, Read: 256 << 20, Memory: 64 << 20}

// goTimeout is the time limit for this read.
const goTimeout = 5 * time.Second

// withGoLeaves returns a view of a Go program in which the profiler finds the callers of leaf functions without a frame. The
// profiler normally misses these callers, because it follows frame pointers except in functions from assembly files. In the view,
// the leaf functions belong to an assembly file. Files that are not Go programs are returned unchanged. Only amd64 needs the
// view.
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
		binary.LittleEndian.PutUint32(unit[:], leaves.Assembly-uint32(l.File))
		patches = append(patches, patch{int64(l.UnitAt), string(unit[:])})
	}
	slices.SortFunc(patches, func(a, b patch) int { return int(a.at - b.at) })
	return &patched{f, patches}
}
