//go:build e2e

package gadgets

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// worker is a program that does everything that gadgets watch. Its threads have the name comm.
type worker struct {
	language, comm string
	// build builds it as the file program, and returns its arguments.
	build func(t *testing.T, program string) (args []string)
}

var workers = []worker{
	{"C, -O2", "work-c", func(t *testing.T, program string) []string {
		igtest.Output(t, "gcc", "-O2", "-Wall", "-Werror", "-o", program, "testdata/languages/work.c")
		return nil
	}},
	{"Go", "work-go", func(t *testing.T, program string) []string {
		igtest.Output(t, "go", "build", "-o", program, "testdata/languages/work.go")
		return nil
	}},
	{"Python", "work-python", func(t *testing.T, program string) []string {
		require.NoError(t, os.Symlink("/usr/bin/python3", program))
		return []string{"testdata/languages/work.py"}
	}},
}

// start runs the program until the test ends, in a cgroup if there is one.
func (w worker) start(t *testing.T, dir string, group *os.File) {
	t.Helper()
	program := filepath.Join(dir, w.comm)
	var args []string
	if built, ok := igtest.Prebuilt(w.comm); ok && w.language != "Python" {
		program = built
	} else {
		args = w.build(t, program)
	}
	attr := &syscall.SysProcAttr{}
	if group != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
	}
	startWith(t, attr, program, args...)
}

// logGetppid makes the kernel log the system call getppid of the programs that this goroutine starts from now on.
func logGetppid(t *testing.T) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_LOG},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // for good: the thread with the filter ends with the goroutine
	require.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}

// dropping creates a cgroup. The kernel drops all packets of its processes. It returns nil if there are no cgroups.
func dropping(t *testing.T) *os.File {
	t.Helper()
	top := unifiedIfAny()
	if top == "" {
		t.Log("no cgroup2 is mounted here: no packets are dropped")
		return nil
	}
	dir, err := os.MkdirTemp(top, "dropping-*")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	require.NoError(t, err)
	defer program.Close()
	attached, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupInetEgress, Program: program})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, attached.Close()) })
	group, err := os.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, group.Close()) })
	return group
}

// findings are a gadget's results for one program.
type findings struct {
	rows                           int64
	stacks, whole, frames, unnamed float64
}

func found(samples []receiver.Sample) (f findings) {
	for _, s := range samples {
		n := s.Total()
		f.rows += n
		root := s.Stack[len(s.Stack)-1].Name
		if root != "[no stack]" && s.Stack[0].Name != "[lost user stack]" {
			f.stacks += float64(n)
		}
		if !slices.Contains(marks, root) {
			f.whole += float64(n)
		}
		for _, frame := range s.Stack {
			if frame.Type == "kernel" || slices.Contains(marks, frame.Name) {
				continue
			}
			f.frames++
			if frame.Name == "" {
				f.unnamed++
			}
		}
	}
	return f
}

// String is a cell of the table.
func (f findings) String() string {
	if f.rows == 0 {
		return "none"
	}
	named := "no user frame"
	if f.frames > 0 {
		named = fmt.Sprintf("%.0f %%", 100*(f.frames-f.unnamed)/f.frames)
	}
	return fmt.Sprintf("%d: %.0f %%, %.0f %%, %s", f.rows, 100*f.stacks/float64(f.rows), 100*f.whole/float64(f.rows), named)
}

// TestInspektorGadgets runs the gadgets of Inspektor Gadget's module that have a stack, unchanged and without a flag for it. It
// runs them on a program in each of three languages, and writes the results into the page that IG_GADGETS_DOC names.
func TestInspektorGadgets(t *testing.T) {
	igtest.NeedRoot(t)
	if os.Getenv("IG_GADGETS_DOC") == "" {
		t.Skip("run make test-ig-gadgets")
	}
	dir, group := t.TempDir(), dropping(t)
	logGetppid(t)
	for _, w := range workers {
		w.start(t, dir, group)
	}
	var table, missing strings.Builder
	known := map[string]bool{}
	for _, g := range all() {
		if g.origin != upstream {
			continue
		}
		known[g.name] = true
		t.Run(g.name, func(t *testing.T) {
			r, err := runOnWorkers(t, g)
			if err != nil {
				words, ok := whyNot(err)
				require.True(t, ok, "%v", err)
				fmt.Fprintf(&missing, "- %s: %s.\n", g.name, words)
				t.Skip(words)
			}
			for i, f := range r.row(t, &table, g.name) {
				if slices.Contains([]string{"profile_cpu", "trace_open", "trace_capabilities", "trace_tcpdrop", "audit_seccomp"}, g.name) {
					require.Positive(t, f.rows, workers[i].language)
					require.GreaterOrEqual(t, f.stacks, 0.95*float64(f.rows), workers[i].language)
				}
				if workers[i].language == "Go" && f.rows > 0 { // Go has frame pointers
					n := float64(f.rows)
					require.GreaterOrEqual(t, f.whole, 0.9*n-5*math.Sqrt(0.9*0.1*n), "nine of ten whole stacks, within five standard errors")
				}
			}
			if g.name == "trace_open" {
				r, err := runOnWorkers(t, g, "COLLECT_STACKS=off")
				require.NoError(t, err)
				r.row(t, &table, "trace_open, with `collect_stacks: off`")
				require.Equal(t, r.accounts.Read, r.accounts.NoStack)
				require.Contains(t, string(r.log), "rows so far have no stack: the gadget collects no stacks without --collect-ustack")
			}
		})
	}
	t.Run("without stacks", func(t *testing.T) {
		if inVM() {
			t.Skip("this machine has no sources of Inspektor Gadget")
		}
		said := answerWithout(t, "snapshot_process")
		fmt.Fprintf(&missing, "\n## Gadgets without stacks\n\nThe exporter gets no rows from gadgets without stacks, and logs a line such as this one:\n\n```text\n%s\n```\n\nThe gadgets without stacks are %s.\n", said, strings.Join(others(t, known), ", "))
	})
	writeUpstreamPage(t, table.String(), missing.String())
}

// row writes a row of the table, and returns the gadget's results for each program.
func (r *run) row(t *testing.T, table *strings.Builder, name string) (all []findings) {
	t.Helper()
	require.Empty(t, r.findings)
	fmt.Fprintf(table, "| %s | %d, %d |", name, r.accounts.Read, r.accounts.NoStack)
	for _, w := range workers {
		f := found(r.of(w.comm))
		t.Logf("%s: %v", w.language, f)
		fmt.Fprintf(table, " %v |", f)
		all = append(all, f)
	}
	table.WriteByte('\n')
	return all
}

// TestInspektorGadgetsRefused runs gadgets with settings that Inspektor Gadget would accept silently, without effect.
func TestInspektorGadgetsRefused(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	image, err := igtest.BuildUpstream(t, "trace_open")
	require.NoError(t, err)
	for flag, said := range map[string]string{
		"--collect-otel-stack":                         "--collect-otel-stack: the program ig_open_x has the type TracePoint",
		"--symbolizers=otel-ebpf-profiler":             "--symbolizers=otel-ebpf-profiler needs the flag --collect-otel-stack",
		"--symbolizers=debuginfod-cache-on-ig-server":  "--symbolizers=debuginfod-cache-on-ig-server is for a daemon, and this run has none",
		"--symbolizers=debuginfod-cache":               "--symbolizers=debuginfod-cache finds debug files by their build IDs, which the gadget does not collect: also set --collect-build-id",
		"--annotate=opne:profiles.name=mine":           `--annotate names the data source "opne", which the gadget does not have; it has "open"`,
		"--annotate=open.fnam:profiles.timestamp=true": `--annotate names the field "fnam", which the data source "open" does not have`,
	} {
		r, err := export(t, options{image: image, seconds: 1, quiet: true, flags: []string{flag}})
		require.ErrorContains(t, err, said)
		require.NotContains(t, string(r.log), "rows read", "the gadget was not loaded")
		t.Log(err)
	}
}

// inVM reports whether this is the virtual machine of vm.sh.
func inVM() bool {
	_, in := igtest.Prebuilt("")
	return in
}

func runOnWorkers(t *testing.T, g gadget, settings ...string) (*run, error) {
	image, err := igtest.BuildUpstream(t, g.name)
	if err != nil {
		return nil, err
	}
	o := options{image: image, seconds: 8, quiet: true}
	for _, s := range append(settings, "INCOMPLETE_STACKS=marked") {
		o.env = append(o.env, "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_OTLP_"+s)
	}
	if slices.Contains(g.flags, "--verbose") {
		o.flags = []string{"--verbose"} // only the verbose log names user probes that were not attached
	}
	r, err := export(t, o)
	if failed := failedUserProbe.FindString(string(r.log)); err == nil && r.accounts.Read == 0 && failed != "" {
		return r, fmt.Errorf("%s", failed)
	}
	return r, err
}

// answerWithout runs a gadget without stacks and returns the exporter's message.
func answerWithout(t *testing.T, name string) string {
	t.Helper()
	image, err := igtest.BuildUpstream(t, name)
	require.NoError(t, err)
	out, err := igtest.Command(t, image, "--timeout=2", "--otel-profiles-exporter=otlp", "--output=none").CombinedOutput()
	require.NoError(t, err, "%s", out)
	said := regexp.MustCompile(`otel-profiles: nothing is exported to .*: gadget .* has no data source with a stack`).Find(out)
	require.NotEmpty(t, said, "%s", out)
	return strings.ReplaceAll(string(said), `\"`, `"`)
}

// others returns the gadgets of the module that are not known to have a stack.
func others(t *testing.T, known map[string]bool) (names []string) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(igtest.UpstreamModule(t), "gadgets", "*", "gadget.yaml"))
	require.NoError(t, err)
	for _, page := range pages {
		if name := filepath.Base(filepath.Dir(page)); !known[name] {
			names = append(names, name)
		}
	}
	return names
}

func writeUpstreamPage(t *testing.T, table, missing string) {
	t.Helper()
	page := os.Getenv("IG_GADGETS_DOC")
	if page == "" || t.Failed() {
		return
	}
	begin, end, version := "<!-- begin table -->\n", "<!-- end table -->", ""
	if inVM() {
		begin, end = "<!-- begin kprobes table -->\n", "<!-- end kprobes table -->"
	} else {
		version = ", with Inspektor Gadget " + igtest.Output(t, "go", "list", "-m", "-f", "{{.Version}}", "github.com/inspektor-gadget/inspektor-gadget")
	}
	var header strings.Builder
	fmt.Fprintf(&header, "\nThese results are from Linux %s%s:\n\n| gadget | rows of all programs, without a stack |", igtest.Output(t, "uname", "-r"), version)
	for _, w := range workers {
		header.WriteString(" " + w.language + " |")
	}
	header.WriteString("\n|---|---|" + strings.Repeat("---|", len(workers)) + "\n")
	if missing != "" {
		missing = "\nThese gadgets were not run on this kernel:\n\n" + missing
	}
	igtest.WriteBetween(t, page, begin, end, header.String()+table+missing+"\n")
}
