package main

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// liftMemlock makes sure that the profiler can lift the limit of locked memory. The profiler lifts it before it makes an eBPF
// map, although the kernel has not needed that since 5.11. Without CAP_SYS_RESOURCE the call would fail, so a filter answers it
// with success in this process.
func liftMemlock() error {
	if raiseMemlock() == nil {
		return nil
	}
	if err := answerMemlock(); err != nil {
		return fmt.Errorf("filtering the system call for the limit of locked memory: %w", err)
	}
	return raiseMemlock()
}

// raiseMemlock raises the limit as the profiler does.
func raiseMemlock() error {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil)
}

// answerMemlock installs a seccomp filter in all threads of this process. Setting that limit then does nothing and succeeds.
// Other calls are not affected.
func answerMemlock() error {
	// load loads half of an argument of the call from struct seccomp_data.
	load := func(argument, half uint32) bpf.Instruction {
		return bpf.LoadAbsolute{Off: 16 + 8*argument + 4*half, Size: 4}
	}
	return installFilter([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4}, // the call's number
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRLIMIT64, SkipTrue: 9},
		load(0, 0), // whose limit: 0 is this process
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 7},
		load(1, 0),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.RLIMIT_MEMLOCK, SkipTrue: 5},
		load(2, 0), // the address of the new limit; 0 if the call only reads the limit
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2},
		load(2, 1),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO}, // with error 0
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
}
