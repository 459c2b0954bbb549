//go:build e2e

package symbols

import (
	"bufio"
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/cfi"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// walked is a program that is traced, and what is needed to walk its stack.
type walked struct {
	t       *testing.T
	pid     int
	thread  int // that is walked; 0: the first one
	program string
	names   []elf.Symbol // of the program
	areas   []codeArea
	tables  map[string]*cfi.Table
	store   *cfi.Store
	below   uint64 // how many bytes below the stack pointer are copied, too
}

// codeArea is a part of the address space with code of a file.
type codeArea struct {
	start, end uint64
	path       string
	bias       uint64 // of addresses over those of the file
	table      *cfi.Table
}

// startWalked starts a program, and goes on until it stops itself.
func startWalked(t *testing.T, path string, args ...string) *walked {
	t.Helper()
	runtime.LockOSThread() // ptrace is one thread's
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	w := &walked{t: t, pid: cmd.Process.Pid, program: path, tables: map[string]*cfi.Table{}, store: cfi.NewStore(cfi.Options{})}
	t.Cleanup(func() {
		cmd.Process.Kill()
		if w.thread != 0 { // the first one ends after those that are traced
			unix.Wait4(w.thread, nil, unix.WALL, nil)
		}
		unix.Wait4(w.pid, nil, 0, nil)
		w.store.Close()
		runtime.UnlockOSThread()
	})
	w.wait(unix.SIGTRAP)
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	w.names, err = f.Symbols()
	require.NoError(t, err)
	w.untilStop()
	w.readMaps()
	return w
}

// wait waits until the program is stopped by a signal.
func (w *walked) wait(want unix.Signal) {
	w.t.Helper()
	var status unix.WaitStatus
	_, err := unix.Wait4(w.pid, &status, unix.WALL, nil)
	require.NoError(w.t, err)
	require.True(w.t, status.Stopped(), "%#x", status)
	require.Equal(w.t, want, status.StopSignal())
}

// untilStop goes on until the program stops itself, and passes other signals on.
func (w *walked) untilStop() {
	w.t.Helper()
	for signal := 0; ; {
		require.NoError(w.t, unix.PtraceCont(w.pid, signal))
		var status unix.WaitStatus
		_, err := unix.Wait4(w.pid, &status, unix.WALL, nil)
		require.NoError(w.t, err)
		require.True(w.t, status.Stopped(), "%#x", status)
		if status.StopSignal() == unix.SIGSTOP {
			return
		}
		signal = int(status.StopSignal())
	}
}

// readMaps reads where the code of files is.
func (w *walked) readMaps() {
	w.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", w.pid))
	require.NoError(w.t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1][2] != 'x' {
			continue
		}
		var start, end, offset uint64
		_, err := fmt.Sscanf(fields[0]+" "+fields[2], "%x-%x %x", &start, &end, &offset)
		require.NoError(w.t, err)
		area := codeArea{start: start, end: end, path: fields[5]}
		switch {
		case area.path == "[vdso]":
			area.table, _ = w.store.Lookup(symbols.VDSO, nil, nil)
			area.bias = start
			require.NotNil(w.t, area.table)
		case strings.HasPrefix(area.path, "/"):
			if w.tables[area.path] == nil {
				w.tables[area.path] = readRules(w.t, area.path)
			}
			area.table = w.tables[area.path]
			e, err := elf.Open(area.path)
			require.NoError(w.t, err)
			for _, p := range e.Progs {
				if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Off&^4095 == offset {
					area.bias = start - p.Vaddr&^4095
				}
			}
			e.Close()
		default:
			continue
		}
		w.areas = append(w.areas, area)
	}
}

// registers returns those of the stopped program, and a copy of its stack.
func (w *walked) registers() (cfi.Registers, cfi.Stack) {
	w.t.Helper()
	var u unix.PtraceRegs
	require.NoError(w.t, unix.PtraceGetRegs(cmp.Or(w.thread, w.pid), &u))
	var regs cfi.Registers
	for i, v := range []uint64{u.Rax, u.Rdx, u.Rcx, u.Rbx, u.Rsi, u.Rdi, u.Rbp, u.Rsp, u.R8, u.R9, u.R10, u.R11, u.R12, u.R13, u.R14, u.R15, u.Rip} {
		regs.Set(i, v)
	}
	copied := make([]byte, 16<<10)
	local := []unix.Iovec{{Base: &copied[0], Len: uint64(len(copied))}}
	base := u.Rsp - w.below
	remote := []unix.RemoteIovec{{Base: uintptr(base), Len: len(copied)}}
	n, err := unix.ProcessVMReadv(w.pid, local, remote, 0)
	if err != nil || n < len(copied) { // the stack ends before: read as much as there is, page by page
		n = 0
		for next := 4096 - int(base%4096); next <= len(copied); next += 4096 {
			local[0].Len, remote[0].Len = uint64(next), next
			got, err := unix.ProcessVMReadv(w.pid, local, remote, 0)
			if err != nil || got < next {
				break
			}
			n = got
		}
	}
	return regs, cfi.Stack{Base: base, Bytes: copied[:n]}
}

// walk returns the addresses of the frames, the innermost first, and how the walk has ended.
func (w *walked) walk() (ips []uint64, end cfi.Result) {
	w.t.Helper()
	regs, stack := w.registers()
	ips, _, end = w.walkFrom(regs, stack)
	return ips, end
}

// walkFrom is walk; it returns the stack pointers, too.
func (w *walked) walkFrom(regs cfi.Registers, stack cfi.Stack) (ips, sps []uint64, end cfi.Result) {
	exact := true
	for range 100 {
		ips, sps = append(ips, regs.IP()), append(sps, regs.SP())
		ip := regs.IP()
		if !exact {
			ip--
		}
		area := w.area(ip)
		if area == nil {
			return ips, sps, cfi.NoRule
		}
		exact = area.table.Signal(ip - area.bias)
		if result := area.table.Step(ip-area.bias, &regs, stack); result != cfi.Caller {
			return ips, sps, result
		}
	}
	return ips, sps, cfi.Bad
}

func (w *walked) area(ip uint64) *codeArea {
	for i := range w.areas {
		if a := &w.areas[i]; ip >= a.start && ip < a.end {
			return a
		}
	}
	return nil
}

// functions returns the program's own functions among the frames.
func (w *walked) functions(ips []uint64) (names []string) {
	for i, ip := range ips {
		if i > 0 {
			ip-- // also behind a signal's frame, where no function of these programs begins
		}
		area := w.area(ip)
		if area == nil || area.path != w.program {
			continue
		}
		for _, s := range w.names {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && ip-area.bias-s.Value < s.Size {
				names = append(names, s.Name)
				break
			}
		}
	}
	return names
}

// where says in which file each frame is, for messages.
func (w *walked) where(ips []uint64) string {
	var b strings.Builder
	for _, ip := range ips {
		if a := w.area(ip); a != nil {
			fmt.Fprintf(&b, "%s+%#x %s\n", filepath.Base(a.path), ip-a.bias, a.table.Describe(ip-a.bias))
		} else {
			fmt.Fprintf(&b, "%#x\n", ip)
		}
	}
	return b.String()
}
