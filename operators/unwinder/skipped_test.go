package unwinder

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// The kernel skips a program if its event occurs while it runs. Skipped calls are counted for the programs of a map only.
func TestSkipped(t *testing.T) {
	igtest.NeedRoot(t)
	var programs [2]*ebpf.Program
	var maps [2]*ebpf.Map
	for i := range programs {
		maps[i] = igtest.Map(t, &ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		var err error
		programs[i], err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, maps[i].FD()),
			asm.Mov.Imm(asm.R3, 'x'), asm.StoreMem(asm.RFP, -8, asm.R3, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 2),
			asm.FnTracePrintk.Call(), // triggers the event again
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}})
		require.NoError(t, err)
		defer programs[i].Close()
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "bpf_trace_printk", Program: programs[0]})
	require.NoError(t, err)
	defer l.Close()

	var found [2][]*ebpf.Program
	for i, m := range maps {
		found[i] = programsOf(m)
		require.Len(t, found[i], 1)
		defer found[i][0].Close()
	}
	require.Zero(t, skipped(found[0]))
	_, err = programs[1].Run(&ebpf.RunOptions{})
	require.NoError(t, err)
	require.NotZero(t, skipped(found[0]))
	require.Zero(t, skipped(found[1]))

	totals := unwindTotals{missed: skipped(found[0])}
	require.Contains(t, totals.summary("nanoseconds"), "; 1 events skipped by the kernel before the gadget saw them")
	require.Equal(t, unwindCount{Events: 1}, totals.ended()["skipped"])
}
