package cfi

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchLibrary returns a library of this machine with thousands of functions.
func benchLibrary(b *testing.B) []byte {
	b.Helper()
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"} {
		if content, err := os.ReadFile(path); err == nil {
			return content
		}
	}
	b.Skip("no C library")
	return nil
}

func BenchmarkRead(b *testing.B) {
	content := benchLibrary(b)
	b.ReportAllocs()
	for b.Loop() {
		_, err := Read(bytes.NewReader(content), int64(len(content)), Limits{})
		require.NoError(b, err)
	}
}

// benchmarkStep steps from addresses of the library in turn.
func benchmarkStep(b *testing.B, addresses int) {
	content := benchLibrary(b)
	table, err := Read(bytes.NewReader(content), int64(len(content)), Limits{})
	require.NoError(b, err)
	stack := Stack{Base: 0x7000, Bytes: make([]byte, 16<<10)}
	for i := range stack.Bytes {
		stack.Bytes[i] = 0x40
	}
	var all []uint64
	for i := 0; len(all) < addresses; i = (i + 1) % len(table.entries) {
		f, ok := table.fdeAt(uint64(table.entries[i].fde))
		require.True(b, ok)
		if f.size > 1 {
			all = append(all, f.begin+f.size/2)
		}
	}
	var regs Registers
	for i := range int(table.arch.columns) {
		regs.Set(i, 0x7000)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		r := regs
		table.Step(all[i%len(all)], &r, stack)
	}
}

func BenchmarkStepCached(b *testing.B)   { benchmarkStep(b, 50) }
func BenchmarkStepUncached(b *testing.B) { benchmarkStep(b, 3000) }

// The most that a step can cost: rules that somebody has made for that, at an address that is another one each time.
func BenchmarkStepHostile(b *testing.B) {
	long := bytes.Repeat([]byte{cfaRememberState, cfaRestoreState}, maxInstructions/(2+rememberCost)-10)
	table := amd64Example(exampleFunction{0x401000, 0x1000_0000, long}).read(b)
	regs := registersAt(0x7000, 0)
	b.ReportAllocs()
	address := uint64(0x401000)
	for b.Loop() {
		r := regs
		table.Step(address, &r, Stack{})
		address++
	}
}
