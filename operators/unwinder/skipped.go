package unwinder

import (
	"slices"

	"github.com/cilium/ebpf"
)

// programsOf opens the programs that use a map. The kernel lists programs for CAP_SYS_ADMIN only: without it there are none.
func programsOf(m *ebpf.Map) (programs []*ebpf.Program) {
	info, err := m.Info()
	if err != nil {
		return nil
	}
	id, _ := info.ID()
	for next, err := ebpf.ProgramGetNextID(0); err == nil; next, err = ebpf.ProgramGetNextID(next) {
		p, err := ebpf.NewProgramFromID(next)
		if err != nil {
			continue // it has ended meanwhile
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

// skipped counts the programs' calls that the kernel has skipped. The kernel does not run a program at a kprobe or tracepoint
// while another one runs on the CPU, or while a process there is in a call of bpf(2).
func skipped(programs []*ebpf.Program) (sum uint64) {
	for _, p := range programs {
		if stats, err := p.Stats(); err == nil {
			sum += stats.RecursionMisses
		}
	}
	return sum
}
