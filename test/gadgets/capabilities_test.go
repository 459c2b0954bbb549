//go:build e2e

package gadgets

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// needed are the capabilities of the daemon that this project needs.
var needed = []string{"sys_admin", "sys_ptrace", "dac_read_search", "syslog"}

// TestCapabilities runs ig with these capabilities, and without each of them. docs/security.md must list the same effects. The
// profiled program belongs to another user, and only that user can read its files.
func TestCapabilities(t *testing.T) {
	igtest.NeedRoot(t)
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.Mkdir(private, 0o755))
	programs := []string{compileInto(t, private, "both"), compileInto(t, private, "allocs"), compileInto(t, private, "contends")}
	for dir := filepath.Dir(private); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	const nobody = 65534
	for _, path := range append(programs, private) {
		require.NoError(t, os.Chown(path, nobody, nobody))
		require.NoError(t, os.Chmod(path, 0o700))
	}
	for _, program := range programs {
		startWith(t, &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, program)
	}
	// Mounting takes CAP_SYS_ADMIN, but a host has these mounted already.
	prefix := []string{"unshare", "--mount", "sh", "-c", `for fs in bpf:/sys/fs/bpf debugfs:/sys/kernel/debug tracefs:/sys/kernel/tracing
		do mount -t ${fs%:*} ${fs%:*} ${fs#*:}; done; exec "$@"`, "sh", "setpriv"}
	cpu, alloc, lock, offcpu := igtest.Import(t, "profile_cpu"), igtest.Import(t, "profile_alloc"), igtest.Import(t, "profile_lock"), igtest.Import(t, "profile_offcpu")

	here := func(s receiver.Sample) bool { return igtest.Depth(s, "work_here") >= 0 }
	kernel := func(s receiver.Sample) bool { return igtest.Depth(s, "vfs_read") >= 0 }
	service := func(s receiver.Sample) bool {
		return s.Service == "both" || s.Service == "allocs" || s.Service == "contends"
	}
	allocator := func(s receiver.Sample) bool {
		return igtest.Depth(s, "__libc_calloc") >= 0 || igtest.Depth(s, "calloc") >= 0
	}
	allocates := func(s receiver.Sample) bool { return igtest.Depth(s, "allocate_large") >= 0 }
	mutex := func(s receiver.Sample) bool { return s.Attributes["lock.kind"] == "user_mutex" }
	takes := func(s receiver.Sample) bool { return igtest.Depth(s, "take_mutex") >= 0 }
	contends := func(s receiver.Sample) bool { return igtest.Depth(s, "contend") >= 0 }
	scheduler := func(s receiver.Sample) bool { return igtest.Depth(s, "__schedule") >= 0 }
	const withTracing = `kernel stacks begin with functions of the tracing code, .*CAP_SYSLOG is needed`
	for _, tt := range []struct {
		name, image, without string
		has, lacks           []func(receiver.Sample) bool
		refused, said        string
	}{
		{"cpu with all", cpu, "", []func(receiver.Sample) bool{here, kernel, service}, nil, "", ""},
		{"cpu without sys_admin", cpu, "sys_admin", nil, nil, "operation not permitted", ""},
		{"cpu without sys_ptrace", cpu, "sys_ptrace", []func(receiver.Sample) bool{kernel}, []func(receiver.Sample) bool{here, service}, "", `no access to [1-9]\d* processes so far: .* CAP_SYS_PTRACE, `},
		{"cpu without dac_read_search", cpu, "dac_read_search", []func(receiver.Sample) bool{kernel, service}, []func(receiver.Sample) bool{here}, "", `no access to [1-9]\d* files so far: .* CAP_DAC_READ_SEARCH for files that only their owner`},
		{"cpu without syslog", cpu, "syslog", []func(receiver.Sample) bool{here, service}, []func(receiver.Sample) bool{kernel}, "", ""},
		{"whole cpu without sys_admin", cpu, "sys_admin", nil, nil, "grant CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN (", ""},
		{"whole cpu without sys_ptrace", cpu, "sys_ptrace", nil, nil, "the unwinder needs the capabilities CAP_SYS_PTRACE (", ""},
		{"whole cpu without syslog", cpu, "syslog", nil, nil, "the unwinder needs the capabilities CAP_SYSLOG (for the kernel's symbols: ", ""},
		{"whole cpu without dac_read_search", cpu, "dac_read_search", nil, nil, "the unwinder needs the capabilities CAP_DAC_READ_SEARCH (", ""},
		{"alloc with all", alloc, "", []func(receiver.Sample) bool{allocator, allocates, service}, nil, "", ""},
		// No program is seen, so the run ends after this message.
		{"alloc without sys_ptrace", alloc, "sys_ptrace", nil, nil, "", `no access to process \d+, so its allocations are not recorded: .* CAP_SYS_PTRACE, `},
		{"alloc without sys_admin", alloc, "sys_admin", nil, nil, "operation not permitted", ""},
		{"alloc without dac_read_search", alloc, "dac_read_search", []func(receiver.Sample) bool{allocator, service}, []func(receiver.Sample) bool{allocates}, "", `no access to [1-9]\d* files so far: .* CAP_DAC_READ_SEARCH for files that only their owner`},
		{"alloc without syslog", alloc, "syslog", []func(receiver.Sample) bool{allocator, allocates, service}, nil, "", ""},
		{"lock with all", lock, "", []func(receiver.Sample) bool{mutex, takes, service}, nil, "", ""},
		{"lock without sys_ptrace", lock, "sys_ptrace", nil, nil, "", `captures: no access to [1-9]\d* processes so far: .* CAP_SYS_PTRACE, `},
		{"lock without sys_admin", lock, "sys_admin", nil, nil, "operation not permitted", ""},
		{"lock without dac_read_search", lock, "dac_read_search", []func(receiver.Sample) bool{mutex, service}, []func(receiver.Sample) bool{takes}, "", `no access to [1-9]\d* files so far: .* CAP_DAC_READ_SEARCH for files that only their owner`},
		// Without it, stacks are by frame pointers, which libc does not have.
		{"lock without syslog", lock, "syslog", []func(receiver.Sample) bool{mutex, service}, []func(receiver.Sample) bool{takes}, "", withTracing},
		{"offcpu with all", offcpu, "", []func(receiver.Sample) bool{contends, scheduler, service}, nil, "", ""},
		{"offcpu without syslog", offcpu, "syslog", []func(receiver.Sample) bool{contends, service}, []func(receiver.Sample) bool{scheduler}, "", withTracing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			comm, flags := "both", framePointers
			if strings.HasPrefix(tt.name, "whole") {
				flags = []string{"--unwind=whole"}
			}
			switch tt.image {
			case alloc:
				comm, flags = "allocs", []string{"--comm=allocs", "--sample-bytes=4096", "--max-cost=1000"}
			case lock:
				// The kind of its waits in the kernel is known in any case.
				comm, flags = "contends", []string{"--comm=contends", "--kernel-locks=false"}
			case offcpu:
				comm, flags = "contends", append([]string{"--comm=contends"}, framePointers...)
			}
			bounds := "-all"
			for _, c := range needed {
				if c != tt.without {
					bounds += ",+" + c
				}
			}
			blind := tt.refused == "" && tt.has == nil
			o := options{
				image: tt.image, seconds: 2, quiet: true, flags: flags,
				prefix: append(slices.Clone(prefix), "--bounding-set="+bounds),
				until: func(samples []receiver.Sample) bool {
					ours := of(samples, comm)
					return len(ours) > 10 && !slices.ContainsFunc(tt.has, func(f func(receiver.Sample) bool) bool { return !slices.ContainsFunc(ours, f) })
				},
			}
			if blind {
				o.until, o.said = nil, tt.said
			}
			r, err := export(t, o)
			if tt.refused != "" {
				require.ErrorContains(t, err, tt.refused)
				return
			}
			require.NoError(t, err)
			if tt.said == "" {
				require.NotContains(t, string(r.log), "no access to")
			} else {
				require.Len(t, regexp.MustCompile(tt.said).FindAll(r.log, -1), 1, "%s", r.log)
			}
			ours := r.of(comm)
			require.Equal(t, blind, len(ours) == 0)
			for i, f := range tt.has {
				require.True(t, slices.ContainsFunc(ours, f), "no expected sample of kind %d", i)
			}
			for i, f := range tt.lacks {
				require.False(t, slices.ContainsFunc(ours, f), "a sample of kind %[2]d, which should need %[1]s", tt.without, i)
			}
		})
	}
}
