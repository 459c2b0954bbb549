//go:build e2e

package polyglot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// nobody is the user of hostile programs.
const nobody = 65534

// hostile is profile_cpu with whole stacks, while a program attacks it. A good program runs beside it.
type hostile struct {
	t    *testing.T
	good *loads.Process
	run  *gadgetRun
}

func startHostile(t *testing.T) *hostile {
	t.Helper()
	good := startLoads(t, find(t, "python"))[0]
	h := &hostile{t, good, startRun(t, igtest.Import(t, "profile_cpu"), "--unwind=whole", "--frequency=199")}
	require.True(t, h.run.wait("samples of the good program", patience, func() bool { return h.run.counted(good.PID, time.Time{}) > 20 }))
	return h
}

func (h *hostile) of(pid int) []receiver.Sample { return ofProcess(h.run.receiver.Samples())[pid] }

// finish waits for new samples of the good program, ends the run and checks its numbers.
func (h *hostile) finish() ([]receiver.Sample, ClosingLines) {
	h.t.Helper()
	from := time.Now()
	require.True(h.t, h.run.wait("further samples of the good program", 3*time.Minute, func() bool {
		return h.run.counted(h.good.PID, from) > 20
	}), "the run does not go on")
	samples := h.run.stop()
	require.Empty(h.t, h.run.receiver.Findings())
	b := readClosingLines(h.t, h.run.log.String())
	require.NoError(h.t, b.Check(igtest.Total(samples)))
	h.t.Logf("%d restarts, %.1f s without the unwinder, %d stacks lost when it ended", b.Restarts, b.Away, b.Crashed)
	for _, s := range h.of(h.good.PID) {
		for _, f := range s.Stack {
			require.NotContains(h.t, f.Name, "evil", "a frame of another program in the good one's stack")
		}
	}
	return samples, b
}

// start starts a hostile program as an unprivileged user.
func (h *hostile) start(name string, args ...string) *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Stderr = os.Stderr
	require.NoError(h.t, cmd.Start())
	h.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd
}

// requireLevel checks how much more memory than before the unwinder takes. It waits for a restarted unwinder.
func (h *hostile) requireLevel(before, more int64) {
	h.t.Helper()
	var after int64
	require.True(h.t, h.run.wait("the unwinder", 2*time.Minute, func() bool {
		after = igtest.Resident(h.run.unwinderPID())
		return after > 0
	}), "there is no unwinder")
	h.t.Logf("the unwinder's memory: %d MiB before, %d MiB after", before>>20, after>>20)
	require.Positive(h.t, before)
	require.Less(h.t, after, before+more, "the unwinder grows")
}

// folder returns a folder to which the hostile user can write.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

// textOffset returns the offset of a function's code in a file.
func textOffset(t *testing.T, path, function string) int64 {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.Symbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Name == function {
			for _, p := range f.Progs {
				if p.Type == elf.PT_LOAD && p.Vaddr <= s.Value && s.Value < p.Vaddr+p.Filesz {
					return int64(s.Value - p.Vaddr + p.Off)
				}
			}
		}
	}
	require.Fail(t, "no such function", "%s in %s", function, path)
	return 0
}

// TestTruncatedWhileMapped runs a program that looks like Go and truncates its own function table while it is mapped. A read
// through a mapping would end the unwinder with SIGBUS. The unwinder must go on, with a stack for each sample of the program.
func TestTruncatedWhileMapped(t *testing.T) {
	dir := folder(t)
	program, victim := igtest.CompileInto(t, dir, "testdata/truncate.c", "gcc", "-O1"), filepath.Join(dir, "victim")
	l := find(t, "go")[0]
	p, err := l.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	text, err := os.ReadFile(p.Binary)
	require.NoError(t, err)
	var at []string
	for _, function := range []string{"main.heavy", "main.light"} {
		offset := textOffset(t, p.Binary, function)
		copy(text[offset:], []byte{0xeb, 0xfe}) // jmp to itself
		at = append(at, strconv.FormatInt(offset, 10))
	}
	require.NoError(t, os.WriteFile(victim, text, 0o777))
	require.NoError(t, os.Chown(victim, nobody, nobody))
	f, err := elf.Open(p.Binary)
	require.NoError(t, err)
	segment := f.Progs[0]
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_LOAD && prog.Flags&elf.PF_X != 0 {
			segment = prog
		}
	}
	require.NoError(t, f.Close())

	h := startHostile(t)
	cmd := h.start(program, victim, strconv.FormatUint(segment.Off, 10), strconv.FormatUint(segment.Filesz, 10), at[0], at[1], "12")
	require.True(t, h.run.wait("samples of the hostile program", 2*time.Minute, func() bool { return h.run.counted(cmd.Process.Pid, time.Time{}) > 0 }))
	time.Sleep(20 * time.Second) // it truncates after 12 s
	info, err := os.Stat(victim)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(len(text)), "the program has not truncated its file")
	_, b := h.finish()
	require.Zero(t, b.Restarts)
	require.Zero(t, b.InUnwinder)
}

// TestMisleadingFiles runs programs whose files lie: their tables claim wrong sizes and offsets.
func TestMisleadingFiles(t *testing.T) {
	dir := folder(t)
	var programs []string
	build := func(load string) []byte {
		p, err := find(t, load)[0].Build(t.Context(), t.TempDir())
		require.NoError(t, err)
		text, err := os.ReadFile(p.Binary)
		require.NoError(t, err)
		return text
	}
	write := func(name string, text []byte) {
		path := filepath.Join(dir, "evil-"+name)
		require.NoError(t, os.WriteFile(path, text, 0o755))
		programs = append(programs, path)
	}
	for _, load := range []string{"c", "go", "rust"} {
		text := build(load)
		for name, change := range map[string]func(section elf.SectionHeader, header []byte){
			"sizes":   func(_ elf.SectionHeader, h []byte) { binary.LittleEndian.PutUint64(h[32:], 1<<62) },
			"offsets": func(_ elf.SectionHeader, h []byte) { binary.LittleEndian.PutUint64(h[24:], ^uint64(0)-100) },
			"links":   func(_ elf.SectionHeader, h []byte) { binary.LittleEndian.PutUint32(h[40:], 0xfffffff0) },
			"entries": func(_ elf.SectionHeader, h []byte) { binary.LittleEndian.PutUint64(h[56:], 0) },
		} {
			changed := bytes.Clone(text)
			forEachSection(t, changed, change)
			write(load+"-"+name, changed)
		}
		// This overwrites the sections that unwinders and symbolizers read.
		for _, name := range []string{".eh_frame", ".eh_frame_hdr", ".gopclntab", ".symtab", ".strtab", ".dynsym", ".note.gnu.build-id", ".go.buildinfo"} {
			for kind, fill := range map[string]byte{"ff": 0xff, "7f": 0x7f} {
				changed := bytes.Clone(text)
				found := false
				forEachSection(t, changed, func(s elf.SectionHeader, _ []byte) {
					if s.Name == name && s.Type != elf.SHT_NOBITS {
						// The first bytes stay, because they identify the section's content.
						content := changed[s.Offset : s.Offset+s.Size]
						for i := 16; i < len(content); i++ {
							content[i] = fill
						}
						found = true
					}
				})
				if found && (load != "go" || name != ".gopclntab") && name != ".dynsym" {
					write(load+name+"-"+kind, changed)
				}
			}
		}
	}
	h := startHostile(t)
	before := igtest.Resident(h.run.unwinderPID())
	for _, path := range programs {
		h.start("/bin/sh", "-c", `ulimit -t 60; exec "$0" >/dev/null 2>&1`, path)
	}
	t.Logf("%d programs", len(programs))
	time.Sleep(40 * time.Second)
	h.requireLevel(before, 256<<20)
	_, b := h.finish()
	require.LessOrEqual(t, b.Restarts, int64(5))
}

// forEachSection calls change with each section and the bytes of its header.
func forEachSection(t *testing.T, text []byte, change func(elf.SectionHeader, []byte)) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(bytes.Clone(text)))
	require.NoError(t, err)
	start, size := binary.LittleEndian.Uint64(text[40:]), uint64(binary.LittleEndian.Uint16(text[58:]))
	for i, s := range f.Sections {
		header := text[start+uint64(i)*size:][:size]
		change(s.SectionHeader, header)
	}
}

// TestFalseInterpreters runs programs with the names of Python, Perl and others that are not these.
func TestFalseInterpreters(t *testing.T) {
	dir := folder(t)
	source := filepath.Join(dir, "false.c")
	var symbols strings.Builder
	symbols.WriteString("#include <stddef.h>\n")
	// Unwinders find interpreters' structures by these symbols, which get misleading contents.
	for _, name := range []string{
		"_PyRuntime", "PyInterpreterState_Head", "_PyEval_EvalFrameDefault", "PyEval_EvalFrameEx", "autoTLSkey", "_Py_ID", "Py_Version",
		"PL_thr_key", "PL_version", "Perl_runops_standard", "PL_runops_std", "ruby_version", "ruby_current_ec", "ruby_current_vm", "rb_vm_exec",
		"executor_globals", "zend_execute", "execute_ex", "php_version", "gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride", "gHotSpotVMStructEntryTypeNameOffset",
		"gHotSpotVMStructEntryFieldNameOffset", "gHotSpotVMStructEntryOffsetOffset", "gHotSpotVMStructEntryAddressOffset",
		"gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride", "gHotSpotVMTypeEntryTypeNameOffset", "gHotSpotVMTypeEntrySizeOffset",
		"v8dbg_SmiTag", "v8dbg_off_fp_function", "_ZN2v88internal7Version6major_E", "_ZN2v88internal7Version6minor_E", "erts_frame_layout", "ermts", "r",
	} {
		fmt.Fprintf(&symbols, "unsigned long %s[512] = { [0 ... 511] = 0x7fffffffffffff00UL };\n", name)
	}
	symbols.WriteString("volatile unsigned long sink;\nint main(void) { for (;;) sink++; }\n")
	require.NoError(t, os.WriteFile(source, []byte(symbols.String()), 0o644))
	var programs []string
	for _, name := range []string{
		"python3.11", "libpython3.11.so.1.0", "perl", "libperl.so.5.36", "ruby", "libruby-3.1.so.3.1", "php", "php8.2", "node", "java", "libjvm.so",
		"beam.smp", "libcoreclr.so", "dotnet",
	} {
		path := filepath.Join(dir, name)
		igtest.Output(t, "gcc", "-O0", "-rdynamic", "-o", path, source)
		programs = append(programs, path)
	}
	h := startHostile(t)
	for _, path := range programs {
		h.start("/bin/sh", "-c", `ulimit -t 60; exec "$0"`, path)
	}
	time.Sleep(30 * time.Second)
	_, b := h.finish()
	require.LessOrEqual(t, b.Restarts, int64(3))
}

// lastPID is the file with the last PID. The kernel looks for the next one after it.
const lastPID = "/proc/sys/kernel/ns_last_pid"

// TestManyProcesses starts and ends thousands of processes. Their threads' names are escapes for a terminal, and some processes die
// while they are read. From the second round on, they reuse the PIDs of the first. Most are too short for a sample, so longer ones
// follow with the same PIDs. They continue until one PID was sampled for two processes.
func TestManyProcesses(t *testing.T) {
	dir := folder(t)
	program := igtest.CompileInto(t, dir, "testdata/forks.c", "gcc", "-O1")
	h := startHostile(t)
	before := igtest.Resident(h.run.unwinderPID())
	from, err := os.ReadFile(lastPID)
	require.NoError(t, err)
	started := 0
	round := func(number, processes int, more ...string) {
		t.Helper()
		require.NoError(t, os.WriteFile(lastPID, from, 0o644))
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, append([]string{strconv.Itoa(processes), strconv.Itoa(number)}, more...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Run(), "%s", out.String())
		started += processes
	}
	const short, long = 5, 20 // rounds; two long ones are usually enough
	for n := range short {
		round(n, 1000)
	}
	h.requireLevel(before, 128<<20)
	for n := 0; n < long && len(metAgain(h.run.receiver.Samples())) == 0; n++ {
		round(n, 32, "300")
	}
	samples, b := h.finish()
	require.Zero(t, b.Restarts)
	again := metAgain(samples)
	t.Logf("%d processes: these PIDs were sampled for several: %v", started, again)
	require.NotEmpty(t, again, "no PID was reused")
	require.NotContains(t, h.run.log.String(), "\x1b", "an escape in the log")
}

// metAgain returns the PIDs that have samples with several names of hostile processes. These do not change their names, so they
// are of two processes.
func metAgain(samples []receiver.Sample) (pids []string) {
	names := map[string]string{}
	for _, s := range samples {
		name, pid := s.Attributes["thread.name"], s.Attributes["process.pid"]
		if !strings.Contains(name, "evil") {
			continue
		}
		if first, met := names[pid]; met && first != name && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
		names[pid] = name
	}
	return pids
}
