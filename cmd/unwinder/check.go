package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// This is the first kernel version that charges eBPF maps to cgroups. Earlier kernels require CAP_SYS_RESOURCE for maps.
const (
	needMajor = 5
	needMinor = 11
)

// missing describes the privileges or files that the unwinder lacks on this machine, and the remedy. It returns "" if nothing is
// missing.
func missing() string {
	var lacks []string
	if !procfs.SharesPIDs() {
		lacks = append(lacks, procfs.NeedPIDs)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if unix.Capget(&header, &caps[0]) == nil {
		need := needs(uint64(caps[1].Effective)<<32|uint64(caps[0].Effective), kernelAddresses("/proc/kallsyms"))
		if len(need) > 0 {
			lacks = append(lacks, "the capabilities "+strings.Join(need, ", ")+" (run ig as root; in a container, as privileged or with these capabilities in securityContext.capabilities.add)")
		}
	}
	if err := liftMemlock(); err != nil {
		lacks = append(lacks, "permission to install a seccomp filter, or CAP_SYS_RESOURCE ("+err.Error()+")")
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		lacks = append(lacks, "the kernel's type information /sys/kernel/btf/vmlinux (a kernel built with CONFIG_DEBUG_INFO_BTF; in a container, /sys of the host)")
	}
	if v, err := features.LinuxVersionCode(); err == nil && v>>8 < needMajor<<8|needMinor {
		lacks = append(lacks, fmt.Sprintf("a kernel of version %d.%d or later (this is %d.%d)", needMajor, needMinor, v>>16, v>>8&0xff))
	}
	if len(lacks) == 0 {
		return ""
	}
	return "the unwinder needs " + strings.Join(lacks, "; ") + ". To collect stacks without the unwinder, set --unwind=frame-pointers"
}

// needs returns the missing capabilities. addresses is the error that kernelAddresses returned.
func needs(caps uint64, addresses error) []string {
	has := func(bit uint) bool { return caps&(1<<bit) != 0 }
	admin := has(unix.CAP_SYS_ADMIN)
	var need []string
	for _, cap := range []struct {
		name string
		ok   bool
	}{
		{"CAP_BPF", admin || has(unix.CAP_BPF)},
		{"CAP_PERFMON", admin || has(unix.CAP_PERFMON)},
		{"CAP_SYS_PTRACE", has(unix.CAP_SYS_PTRACE)},
		// The profiler opens /proc/PID/map_files. Without this capability, it cannot read any process.
		{"CAP_CHECKPOINT_RESTORE", admin || has(unix.CAP_CHECKPOINT_RESTORE)},
		// Some executables can be read only by their owner. Without this capability, their stacks end at the first frame.
		{"CAP_DAC_READ_SEARCH", has(unix.CAP_DAC_READ_SEARCH)},
	} {
		if !cap.ok {
			need = append(need, cap.name)
		}
	}
	// CAP_SYS_ADMIN does not include this capability, but a sysctl can make it unnecessary.
	if addresses != nil {
		need = append(need, "CAP_SYSLOG (for the kernel's symbols: "+addresses.Error()+")")
	}
	return need
}

// kernelAddresses returns an error if the kernel hides its addresses. All symbols then have the address 0.
func kernelAddresses(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading the kernel's symbols: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		address, _, _ := strings.Cut(lines.Text(), " ")
		if strings.Trim(address, "0") != "" {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the kernel's symbols: %w", err)
	}
	return fmt.Errorf("%s hides kernel addresses: see the sysctl kernel.kptr_restrict", path)
}
