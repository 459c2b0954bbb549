package unwinder

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// endTime limits the time that the unwinder takes to exit.
	endTime = 5 * time.Second
	// timerSlack is the allowed delay of the unwinder's timers, because the unwinder needs no precision of microseconds. While
	// threads run, Go's runtime checks them every 20 µs. Without the slack, this took an eighth of the unwinder's CPU time.
	timerSlack = 2 * time.Millisecond
	// readTime limits a request to read a process.
	readTime = 10 * time.Millisecond
	// pipeSize is the size of the kernel's buffer for the unwinder's output.
	pipeSize = 1 << 20
)

// process is one run of the unwinder.
type process struct {
	*child
	settings Settings // settings at the start of the process
	stdin    io.WriteCloser
	out      *os.File // the stream from the unwinder
	counters *os.File
	entries  *os.File // the socket for its entry programs; nil if it sends none
	bound    uint64   // the memory limit in bytes

	questions atomic.Int64 // the number of requests for chains
	givenUp   atomic.Bool  // it was killed and did not exit
}

// launch starts the unwinder with a memory limit of bound bytes. shared contains the wire.SharedMaps. It is empty for settings
// without chains.
func launch(path string, s Settings, a avoid, bound uint64, shared []*ebpf.Map, log func(line string)) (*process, error) {
	counters, err := newCounters()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		counters.Close()
		return nil, fmt.Errorf("creating a pipe: %w", err)
	}
	// A smaller pipe also works, because the unwinder aggregates samples for longer while the reader is late.
	_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	p := &process{settings: s, out: r, counters: counters, bound: bound}
	p.child = newChild(path, bound, log,
		"-languages", s.Languages, "-map-scale", strconv.Itoa(s.Scale), "-spans="+strconv.FormatBool(s.Spans), "-labels", s.Labels, "-leave-alone", a.String())
	passed := []*os.File{w} // inherited by the unwinder only
	defer func() {
		for _, f := range passed {
			f.Close()
		}
	}()
	if len(shared) > 0 {
		var theirs *os.File
		if p.entries, theirs, err = socketPair(unix.SOCK_SEQPACKET); err != nil {
			p.close()
			return nil, err
		}
		passed = append(passed, theirs)
		for i, m := range shared {
			fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				p.close()
				return nil, fmt.Errorf("sending the map %s: %w", wire.SharedMaps[i], err)
			}
			passed = append(passed, os.NewFile(uintptr(fd), wire.SharedMaps[i]))
		}
		p.cmd.Args = append(p.cmd.Args, "-chains", s.Chains)
	}
	p.cmd.ExtraFiles = append([]*os.File{w, counters}, passed[1:]...)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		p.close()
		return nil, fmt.Errorf("creating a pipe: %w", err)
	}
	if err := p.start(timerSlack); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// newCounters creates the file of counters, which outlives the unwinder. Its size cannot change.
func newCounters() (*os.File, error) {
	fd, err := unix.MemfdCreate("unwinder", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("creating the counter file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "counters")
	if err := f.Truncate(8 * wire.CounterCount); err != nil {
		f.Close()
		return nil, fmt.Errorf("creating the counter file: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("sealing the counter file: %w", err)
	}
	return f, nil
}

// count reads the counters.
func (p *process) count() (c [wire.CounterCount]uint64) {
	var b [8 * wire.CounterCount]byte
	if n, _ := p.counters.ReadAt(b[:], 0); n == len(b) {
		for i := range c {
			c[i] = binary.NativeEndian.Uint64(b[8*i:])
		}
	}
	return c
}

// memory returns the resident memory, or 0 if it cannot be read.
func (p *process) memory() uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	if f := bytes.Fields(b); len(f) > 1 {
		n, _ := strconv.ParseUint(string(f[1]), 10, 64)
		return n * uint64(os.Getpagesize())
	}
	return 0
}

// read makes the unwinder read a process before its first event. It does not wait. If there is no room, it drops the request.
func (p *process) read(pid uint32) {
	if f, ok := p.stdin.(interface{ SetWriteDeadline(t time.Time) error }); ok && f.SetWriteDeadline(time.Now().Add(readTime)) == nil {
		_, _ = p.stdin.Write(binary.LittleEndian.AppendUint32(nil, pid))
	}
}

// ask requests chains. The unwinder answers on the socket and continues its work meanwhile.
func (p *process) ask(kinds []wire.ChainKind) error {
	p.questions.Add(1)
	return wire.AskChains(int(p.entries.Fd()), kinds)
}

// end asks the unwinder to exit. Its remaining output can still be read.
func (p *process) end() { _ = p.stdin.Close() }

// kill kills the unwinder. Gadgets must stop calling it at once, because it can exit late or never.
func (p *process) kill() {
	if socket, err := p.entries.SyscallConn(); err == nil { // the socket exists and is open
		_ = socket.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = p.cmd.Process.Kill()
}

// wait waits for the exit, and kills the unwinder after d. If one of its threads waits for a file system, the unwinder does not
// exit even then. wait abandons it and closes its stream.
func (p *process) wait(d time.Duration) {
	if !patience.Within(p.ended, d) {
		p.kill()
		p.giveUp(d)
	}
}

// destroy kills the unwinder without waiting for its exit.
func (p *process) destroy(d time.Duration) {
	p.kill()
	go p.giveUp(d)
}

// giveUp waits until a killed unwinder exits. If it does not exit in time, giveUp closes its stream.
func (p *process) giveUp(d time.Duration) {
	if !patience.Within(p.ended, d) {
		p.givenUp.Store(true)
		_ = p.out.Close()
	}
}

func (p *process) close() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	_ = p.out.Close()
	_ = p.counters.Close()
	_ = p.entries.Close() // Close of nil does nothing
}

// maxLine limits a line of the unwinder's log.
const maxLine = 1024

// logWriter splits the unwinder's log into lines. Profiled programs can influence them, so they are cut at maxLine and cleaned.
type logWriter struct {
	line func(string)

	mu    sync.Mutex
	part  []byte
	fatal string
	wrong string // the unwinder's own last error
	quiet bool   // within a crash dump
}

// Write implements io.Writer.
func (l *logWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range b {
		if c != '\n' {
			if len(l.part) < maxLine {
				l.part = append(l.part, c)
			}
			continue
		}
		l.take(printable.Clean(string(l.part)))
		l.part = l.part[:0]
	}
	return len(b), nil
}

// take passes a line on. The first lines of a crash dump name the cause.
func (l *logWriter) take(line string) {
	crash := false
	for _, start := range []string{"fatal error:", "panic:", "SIGBUS", "SIGSEGV", "unexpected fault address", "runtime:", "[signal "} {
		crash = crash || strings.HasPrefix(line, start)
	}
	switch {
	case crash && len(l.fatal) < maxLine:
		if l.fatal != "" {
			l.fatal += "; "
		}
		l.fatal += line
		l.quiet = true
	case strings.HasPrefix(line, "level="):
		l.quiet = false
		if msg, ok := strings.CutPrefix(line, "level=ERROR msg="); ok && !fromProfiler(line) {
			if text, err := strconv.Unquote(msg); err == nil {
				msg = printable.Clean(text)
			}
			l.wrong = msg
		}
		l.line(line)
	case !l.quiet && line != "":
		l.line(line)
	}
}

// last returns the first lines of a crash dump, or else the unwinder's last error, in parentheses. Without either it returns
// "".
func (l *logWriter) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text := cmp.Or(l.fatal, l.wrong); text != "" {
		return " (" + text + ")"
	}
	return ""
}

// fromProfiler reports whether a line comes from the eBPF profiler in the unwinder.
func fromProfiler(line string) bool {
	return strings.HasSuffix(line, " from=profiler") || strings.Contains(line, " from=profiler ")
}
