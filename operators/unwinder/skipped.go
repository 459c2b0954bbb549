package unwinder

import (
	"slices"

	"github.com/cilium/ebpf"
)

// programsOf opens the programs that use a map. Without CAP_SYS_ADMIN it finds none, because the kernel requires this capability
// to list programs.
func programsOf(m *ebpf.Map) (programs []*ebpf.Program) {
	info, err := m.Info()
	if err != nil {
		return nil
	}
	id, _ := info.ID()
	for next, err := ebpf.ProgramGetNextID(0); err == nil; next, err = ebpf.ProgramGetNextID(next) {
		p, err := ebpf.NewProgramFromID(next)
		if err != nil {
			continue // unloaded in the meantime
		}
		if info, err := p.Info(); err == nil {
			if ids, _ := info.MapIDs(); slices.Contains(ids, id) {
				programs = append(programs, p)
				continue
			}
		}
		_ = p.Close()
	}
	return programs
}

// skipped returns how often the kernel has skipped the programs. At a kprobe or tracepoint, the kernel runs no program while
// another program or bpf(2) runs on the same CPU.
func skipped(programs []*ebpf.Program) (sum uint64) {
	for _, p := range programs {
		if stats, err := p.Stats(); err == nil {
			sum += stats.RecursionMisses
		}
	}
	return sum
}
