package stack

import (
	"fmt"
	"testing"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// benchStack is a stack of 28 frames whose text has about 1.2 kB, as those of a server in Go have.
func benchStack() (symbols, addrs, buildIDs []byte) {
	var names, offsets []string
	var ips []uint64
	for i := range 28 {
		names = append(names, fmt.Sprintf("github.com/example/server/pkg/handler.(*H).step%02d", i))
		ips = append(ips, 0x7f0000000000+uint64(i))
		offsets = append(offsets, fmt.Sprintf("%s +%x", otherID, 0x1000+i))
	}
	return list(names...), addresses(ips...), list(offsets...)
}

func BenchmarkAppend(b *testing.B) {
	symbols, addrs, buildIDs := benchStack()
	var bare []string
	for i := range 28 {
		bare = append(bare, fmt.Sprintf("0x7f00000000%02x", i))
	}
	bareText := list(bare...)
	kernel := NewKernel(KernelOptions{Symbols: testSymbols()})
	user := NewUser(UserOptions{})
	var kernelNames []string
	for i := range 28 {
		kernelNames = append(kernelNames, fmt.Sprintf("__x64_sys_call_number_%d", i))
	}
	kernelText := list(kernelNames...)
	var shapes []string
	for range 28 {
		shapes = append(shapes, goShape)
	}
	shapesText := list(shapes...)

	for _, bench := range []struct {
		name   string
		append func([]profile.Frame) ([]profile.Frame, Outcome)
	}{
		{"kernel", func(f []profile.Frame) ([]profile.Frame, Outcome) { return kernel.Append(f, kernelText, 1, true) }},
		{"user", func(f []profile.Frame) ([]profile.Frame, Outcome) { return user.Append(f, symbols, addrs, nil) }},
		{"user, build IDs", func(f []profile.Frame) ([]profile.Frame, Outcome) { return user.Append(f, symbols, addrs, buildIDs) }},
		{"user, no symbols", func(f []profile.Frame) ([]profile.Frame, Outcome) { return user.Append(f, bareText, addrs, nil) }},
		{"user, Go shapes", func(f []profile.Frame) ([]profile.Frame, Outcome) { return user.Append(f, shapesText, addrs, nil) }},
		{"plain", func(f []profile.Frame) ([]profile.Frame, Outcome) { return AppendPlain(f, symbols) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			var frames []profile.Frame
			for b.Loop() {
				frames, _ = bench.append(frames[:0])
			}
		})
	}
}
