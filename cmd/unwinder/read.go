package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// nobody is a UID and GID that own no files.
const nobody = 65534

// readFiles reads the files and decodes the process contexts that it receives through the socket, descriptor 3. It drops all
// privileges first, and runs until the other end is closed. memory is the memory limit in bytes.
func readFiles(memory uint64) error {
	conn, err := symtab.NewConn(os.NewFile(3, "socket"))
	if err != nil {
		return errors.New("only ig and Inspektor Gadget's daemon start this program")
	}
	defer conn.Close()
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	if err := confine(memory); err != nil {
		return fmt.Errorf("dropping privileges before reading workload files: %w", err)
	}
	return parse.Here{}.Serve(conn, int64(memory/3*2), decodeContext)
}

// arena is the size of the steps in which Go's heap grows. Reserved address space also counts towards the limit.
const arena = 64 << 20

// confine drops all privileges of this process. Afterwards, the process can only read the files that it receives.
func confine(memory uint64) error {
	limits := map[int]uint64{unix.RLIMIT_DATA: memory + 2*arena, unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_NOFILE: 64}
	for what, limit := range limits {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("setting a limit: %w", err)
		}
	}
	if os.Getuid() == 0 {
		// Without CAP_SETUID, as in Kubernetes, these calls fail, and the user remains root. The filter applies anyway.
		_ = syscall.Setgroups(nil)
		_ = syscall.Setresgid(nobody, nobody, nobody)
		_ = syscall.Setresuid(nobody, nobody, nobody)
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return installFilter(callFilter(uint32(os.Getpid())))
}

// dropCapabilities drops the capabilities of all threads.
func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", errno)
	}
	return nil
}

// calls lists the system calls that reading and Go's runtime need. With these calls, the process cannot open files or start
// programs, and can send data only through the socket.
var calls = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_PREAD64, unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_CLOSE,
	unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_SHUTDOWN,
	unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_MINCORE,
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETRANDOM, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// fileCommands lists the commands of fcntl that Go's runtime needs. Others could send signals, or take locks and leases on files
// of workloads.
var fileCommands = []uint32{unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL, unix.F_DUPFD_CLOEXEC}

// callFilter allows the system calls in calls, clone for threads, fcntl with fileCommands, and signals to the process pid, which
// is this one. All other calls fail with EPERM. Offsets refer to struct seccomp_data.
func callFilter(pid uint32) []bpf.Instruction {
	deny := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	filter := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		deny,
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: unix.CLONE_THREAD, SkipTrue: 1},
		allow,
		deny,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_TGKILL, SkipTrue: 4},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: pid, SkipTrue: 1},
		allow,
		deny,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_FCNTL, SkipTrue: uint8(2 + 2*len(fileCommands))},
		bpf.LoadAbsolute{Off: 24, Size: 4},
	}
	for _, command := range fileCommands {
		filter = append(filter, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: command, SkipTrue: 1}, allow)
	}
	filter = append(filter, deny)
	for _, call := range calls {
		filter = append(filter, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, allow)
	}
	return append(filter, deny)
}
