package procfs

import "os"

// firstPIDNamespace is the host's PID namespace. The number is PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
const firstPIDNamespace = "pid:[4026531836]"

// NeedPIDs describes the missing access if SharesPIDs is false, and the remedy.
const NeedPIDs = "the host's PID namespace, because the kernel reports processes by their PIDs on the host (Kubernetes: hostPID: true in the daemon's pod, hostPID=true for Inspektor Gadget's chart; docker: --pid=host)"

// SharesPIDs reports whether this process is in the host's PID namespace. If so, the kernel's PIDs are valid in this process's
// system calls.
func SharesPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == firstPIDNamespace
}
