package main

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// liftMemlock makes sure that the profiler can raise the limit for locked memory. The profiler raises this limit before it
// creates an eBPF map, although kernels since 5.11 do not require it. Without CAP_SYS_RESOURCE, the call would fail. Therefore a
// seccomp filter makes the call succeed without any effect.
func liftMemlock() error {
	if raiseMemlock() == nil {
		return nil
	}
	if err := answerMemlock(); err != nil {
		return fmt.Errorf("filtering the system call that limits locked memory: %w", err)
	}
	return raiseMemlock()
}

// raiseMemlock raises the limit in the same way as the profiler.
func raiseMemlock() error {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil)
}

// answerMemlock installs a seccomp filter in all threads of this process. Calls that set this limit then succeed without any
// effect. Other calls are not affected.
func answerMemlock() error {
	// load loads one half of a call's argument from struct seccomp_data.
	load := func(argument, half uint32) bpf.Instruction {
		return bpf.LoadAbsolute{Off: 16 + 8*argument + 4*half, Size: 4}
	}
	return installFilter([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4}, // the number of the system call
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRLIMIT64, SkipTrue: 9},
		load(0, 0), // the process; 0: this one
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 7},
		load(1, 0),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.RLIMIT_MEMLOCK, SkipTrue: 5},
		load(2, 0), // the address of the new limit; 0: the call only reads the limit
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2},
		load(2, 1),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO}, // with error 0
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
}
