package stack

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// loadProgram loads a small program and returns the address of its code.
func loadProgram(t *testing.T, name string) (p *ebpf.Program, addr uint64) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	require.NoError(t, err)
	info, err := p.Info()
	require.NoError(t, err)
	addrs, ok := info.JitedKsymAddrs()
	require.True(t, ok)
	return p, uint64(addrs[0])
}

// TestProgramsComeAndGo checks that a program gets its own name even if another program's symbol is cached.
func TestProgramsComeAndGo(t *testing.T) {
	igtest.NeedRoot(t)
	symbols := runningKernel(t)
	k := NewKernel(KernelOptions{Symbols: symbols, RawAddresses: true, KeepTracing: true})
	frame := func(addr uint64, said string) string {
		k.symbols.programs.mu.Lock()
		k.symbols.programs.looked = time.Time{} // as if a second had passed
		k.symbols.programs.mu.Unlock()
		var f profile.Frame
		k.frame(&f, said, addr, true, true)
		return f.Name
	}
	const predecessor = "bpf_prog_0123456789abcdef_predecessor"
	first, at := loadProgram(t, "first")
	require.Regexp(t, `^bpf_prog_[0-9a-f]{16}_first$`, frame(at+4, predecessor))
	require.NoError(t, first.Close())
	before := symbols.Changes()
	require.Eventually(t, func() bool { return frame(at+4, predecessor) == "" }, 20*time.Second, 100*time.Millisecond,
		"the code is gone: nothing is known of that place")
	require.Greater(t, symbols.Changes(), before, "stacks through it have to be named anew")

	// One of these programs most likely gets the same address.
	for i := range 20 {
		p, where := loadProgram(t, fmt.Sprintf("next%d", i))
		defer func() { require.NoError(t, p.Close()) }()
		require.Regexp(t, fmt.Sprintf(`^bpf_prog_[0-9a-f]{16}_next%d$`, i), frame(where+4, predecessor))
	}
}

// TestModulesComeAndGo checks that the list of modules is read again.
func TestModulesComeAndGo(t *testing.T) {
	root := t.TempDir()
	write := func(modules, symbols string) {
		require.NoError(t, os.MkdirAll(root+"/proc", 0o755))
		require.NoError(t, os.WriteFile(root+"/proc/modules", []byte(modules), 0o600))
		require.NoError(t, os.WriteFile(root+"/proc/kallsyms", []byte(symbols), 0o600))
	}
	write("old 4096 0 - Live 0xffffffffc0000000\n", "ffffffffc0000000 t old_function\t[old]\n")
	symbols := &KernelSymbols{Start: 0xffffffff81000000, End: 0xffffffff82000000, modules: &moduleTable{root: root}}
	k := NewKernel(KernelOptions{Symbols: symbols, RawAddresses: true})
	var f profile.Frame
	k.frame(&f, "x", 0xffffffffc0000010, true, true)
	require.Equal(t, "old_function", f.Name)
	before := symbols.Changes()
	write("new 4096 0 - Live 0xffffffffc0000000\n", "ffffffffc0000000 t new_function\t[new]\n")
	symbols.modules.looked = time.Time{}
	k.frame(&f, "old_function", 0xffffffffc0000010, true, true)
	require.Equal(t, "new_function", f.Name)
	require.Greater(t, symbols.Changes(), before)
}
