package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

func TestInterpreters(t *testing.T) {
	i := config{languages: "java,python"}.interpreters()
	if i.Python.Disabled || i.Hotspot.Disabled || !i.Ruby.Disabled || !i.Go.Disabled {
		t.Errorf("%+v", i)
	}
	// All languages are known that the starter accepts.
	for _, names := range wire.FrameNames {
		c := config{languages: names.Setting}
		if (unwinder.Settings{Languages: c.languages}).Check() != nil {
			continue
		}
		if i := c.interpreters(); (i == interpreterconfig.NoInterpreters()) != (c.languages == "native") {
			t.Errorf("%s: %+v", c.languages, i)
		}
	}
}

func TestLanguageOf(t *testing.T) {
	for exe, want := range map[string]wire.FrameType{
		"python3.11": wire.FramePython, "python": wire.FramePython, "pythonista": wire.FrameUnknown, "java": wire.FrameJVM, "javac": wire.FrameUnknown,
		"node": wire.FrameV8, "nodemon": wire.FrameUnknown, "php-fpm8.2": wire.FramePHP, "perl5.36.0": wire.FramePerl, "beam.smp": wire.FrameBEAM, "dotnet": wire.FrameDotnet, "": wire.FrameUnknown,
	} {
		if got := languageOf(exe); got != want {
			t.Errorf("%q: %v, not %v", exe, got, want)
		}
	}
}

func TestLabels(t *testing.T) {
	label := func(kv ...string) map[libpf.String]libpf.String {
		m := map[libpf.String]libpf.String{}
		for i := 0; i < len(kv); i += 2 {
			m[libpf.Intern(kv[i])] = libpf.Intern(kv[i+1])
		}
		return m
	}
	trace, span := "0102030405060708090a0b0c0d0e0f10", "1112131415161718"
	all := label("trace_id", trace, "span_id", span, "tenant", "a\x00b", "request", "17", "zone", strings.Repeat("z", 500))

	sorted := func(labels []wire.Label) []wire.Label {
		return slices.SortedFunc(slices.Values(labels), func(a, b wire.Label) int { return strings.Compare(a.Key, b.Key) })
	}
	c := config{spans: true, labels: []string{"zone", "tenant"}}
	k := c.tell(all, libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	if k.TraceID[0] != 1 || k.SpanID[7] != 0x18 {
		t.Errorf("the span is %x %x", k.TraceID, k.SpanID)
	}
	if got := sorted(k.Labels); len(got) != 2 || got[0] != (wire.Label{Key: "tenant", Value: "ab"}) || got[1].Key != "zone" || len(got[1].Value) != maxLabel {
		t.Errorf("%+v", got)
	}

	c = config{labels: []string{"tenant"}}
	k = c.tell(all, libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	if k.TraceID != libpf.InvalidAPMTraceID || k.SpanID != libpf.InvalidAPMSpanID {
		t.Error("spans that nobody asked for")
	}

	c = config{labels: []string{"span_id", "trace_id"}}
	k = c.tell(all, libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	if got := sorted(k.Labels); len(got) != 2 || got[0] != (wire.Label{Key: "span_id", Value: span}) || got[1] != (wire.Label{Key: "trace_id", Value: trace}) {
		t.Errorf("%+v", got)
	}

	c = config{spans: true}
	k = c.tell(label("trace_id", "01"+strings.Repeat("x", 30), "span_id", span), libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	if k.SpanID != libpf.InvalidAPMSpanID {
		t.Error("a trace that is no number")
	}

	c = config{spans: true}
	k = c.tell(label("trace_id", "no hexadecimal", "span_id", span), libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	if k.SpanID != libpf.InvalidAPMSpanID || k.Labels != nil {
		t.Error("a span without its trace links to nothing")
	}
}

// lockedBuffer is the output of the writing goroutine.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func newTestSampler(w io.Writer) *sampler {
	s := newSampler(wire.NewWriter(w), config{}, &counters{}, slog.New(slog.DiscardHandler))
	s.procs.pids[7] = known{proc: &proc{Proc: wire.Proc{PID: 7, Start: 1, MntNS: 2, Exe: "python3"}, language: wire.FramePython}, alive: 1 << 62}
	s.pid, s.ktime = 7, 1000
	return s
}

func trace(frames ...libpf.Frame) *libpf.Trace {
	t := &libpf.Trace{}
	for i := range frames {
		t.Frames.Append(&frames[i])
	}
	return t
}

// report passes a trace to the sampler, as handle does.
func (s *sampler) report(t *testing.T, x *libpf.Trace) {
	t.Helper()
	s.counters[wire.CounterTaken].Add(1)
	if err := s.ReportTraceEvent(x, &samples.TraceEventMeta{Value: 1}); err != nil {
		t.Fatal(err)
	}
}

// Interpreters' frames that differ only in their line make two stacks, unlike in the profiler's own hash.
func TestSampler(t *testing.T) {
	var out lockedBuffer
	s := newTestSampler(&out)
	python := func(line libpf.SourceLineno) libpf.Frame {
		return libpf.Frame{Type: libpf.PythonFrame, FunctionName: libpf.Intern("heavy"), SourceFile: libpf.Intern("load.py"), SourceLine: line}
	}
	abort := libpf.Frame{Type: libpf.UnknownFrame.Error(), AddressOrLineno: 4012}
	for range 3 {
		s.report(t, trace(python(14)))
	}
	s.report(t, trace(python(15)))
	s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: 0x10}, abort))
	s.report(t, trace())
	s.close()

	r := wire.NewReader(&out.b)
	byLine := map[uint64]uint64{}
	var last wire.Stats
	var aborted uint64
	for {
		ev, err := r.Next()
		if err != nil {
			break
		}
		for _, x := range ev.Flush.Unwound {
			if x.ID != 1 || x.Proc.PID != 7 || x.Proc.MntNS != 2 {
				t.Errorf("%+v", x)
			}
			if x.Stack.Abort != 0 {
				aborted++
				if x.Stack.Abort != 4012 || len(x.Stack.Frames) != 1 {
					t.Errorf("%+v", x.Stack)
				}
				continue
			}
			byLine[x.Stack.Frames[0].Line]++
		}
		last = ev.Flush.Stats
	}
	if byLine[14] != 3 || byLine[15] != 1 || aborted != 1 {
		t.Errorf("%v, %d not complete", byLine, aborted)
	}
	if last.Taken != 6 || last.Idle != 1 || last.Aborts[4012] != 1 {
		t.Errorf("%+v", last)
	}
	if l := last.Languages[wire.FramePython]; l.Frames != 4 || l.Expected != 5 || l.Missing != 1 {
		t.Errorf("%+v", l)
	}
}

// Samples are written once a second. Samples of new processes, and large numbers of samples, are written at once.
func TestWhenSamplesAreWritten(t *testing.T) {
	now := time.Now()
	s := &sampler{
		counters: &counters{}, procs: newProcs(), stacks: map[string]*entry{}, flushed: now,
		due: make(chan struct{}, 1), ktime: 1000,
	}
	for pid := range uint32(3) {
		s.procs.pids[pid+1] = known{proc: &proc{Proc: wire.Proc{PID: pid + 1, Start: 1}}, alive: 1 << 62}
	}
	// poll reports the samples of one pollInterval. It returns whether they are written.
	poll := func(samples int, pids ...uint32) bool {
		for _, s.pid = range pids {
			for i := range samples {
				s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: libpf.AddressOrLineno(i)}))
			}
		}
		now = now.Add(pollInterval)
		s.drained(now)
		select {
		case <-s.due:
			s.events = s.events[:0]
			s.news = false
			return true
		default:
			return false
		}
	}
	for i, p := range []struct {
		samples int
		pids    []uint32
		want    bool
	}{
		{10, []uint32{1}, true}, // a new process
		{10, []uint32{1}, false},
		{10, []uint32{1}, false},
		{10, []uint32{1}, true}, // a second is over
		{10, []uint32{1}, false},
		{10, []uint32{1, 2}, true}, // another process
		{10, []uint32{2, 1}, false},
		{10, []uint32{2, 1}, true}, // which does not delay the others
		{0, nil, false},
		{flushThreshold, []uint32{1}, true}, // many
		{0, nil, false},
		{0, nil, false}, // nothing to write
		{10, []uint32{1}, false},
	} {
		if got := poll(p.samples, p.pids...); got != p.want {
			t.Errorf("poll %d: written: %v", i, got)
		}
	}
	s.ReportExecutable(&reporter.ExecutableMetadata{Mapping: &process.RawMapping{}, Process: process.New(1, 1)})
	if !poll(1, 1) {
		t.Error("a file that was read for the first time waits for its time")
	}
	// A new process does not wait until all samples of a busy machine are handled.
	told := func(pid uint32, last time.Time) bool {
		s.procs.pids[pid] = known{proc: &proc{Proc: wire.Proc{PID: pid, Start: 1}}, alive: 1 << 62}
		s.pid, s.woken = pid, last
		s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame}))
		return len(s.due) > 0
	}
	if told(10, time.Now().Add(time.Hour)) {
		t.Error("written twice at once")
	}
	if !told(11, time.Now().Add(-pollInterval)) {
		t.Error("a new process waits for all that the kernel has")
	}
}

// If nobody reads, the number of kept stacks must be limited, and dropped stacks must be counted.
func TestSlowReader(t *testing.T) {
	r, w := io.Pipe()
	s := newTestSampler(w)
	const n = maxPending + maxStacks
	for i := range n {
		s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: libpf.AddressOrLineno(i)}))
	}
	if len(s.stacks) > maxStacks || len(s.events) > maxPending {
		t.Errorf("%d stacks, %d events are kept", len(s.stacks), len(s.events))
	}
	if s.kept != len(s.stacks) {
		t.Errorf("%d frames count as kept, of %d stacks with one each", s.kept, len(s.stacks))
	}
	ended := make(chan uint64)
	go func() {
		in, got := wire.NewReader(r), uint64(0)
		for {
			ev, err := in.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				ended <- got
				return
			}
			got += uint64(len(ev.Flush.Unwound))
		}
	}()
	s.close()
	w.Close()
	got := <-ended
	if s.stats.Full == 0 || got+s.stats.Full != n {
		t.Errorf("%d arrived, %d were dropped, of %d", got, s.stats.Full, n)
	}
}

// A process is avoided while it runs. A later process with its PID is not.
func TestAvoided(t *testing.T) {
	pid := uint32(os.Getpid())
	start, _, err := readProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		start uint64
		want  bool
	}{{start, true}, {start - procfs.Tick, false}} {
		a := parseAvoided(fmt.Sprintf("2:3,%d:%d,1:2", pid, c.start))
		for range 2 { // as at each event
			if a.is(pid) != c.want {
				t.Errorf("the process with the start %d is avoided: %v", c.start, !c.want)
			}
		}
		if a.is(1 << 30) {
			t.Error("another one is avoided")
		}
	}
}

// An exited process must still be known, and must not be confused with a later process with the same PID.
func TestProcessThatHasEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("eBPF wants root")
	}
	e, err := watchExits()
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	p := newProcs()
	p.exits = e

	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, during := uint32(cmd.Process.Pid), clock(unix.CLOCK_MONOTONIC)
	start, mntns, err := readProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	got := p.get(pid, during)
	if !procfs.SameStart(got.Start, start) || got.MntNS != mntns || mntns == 0 {
		t.Errorf("%+v, not %d %d", got.Proc, start, mntns)
	}
	if again := p.get(pid, during); again != got {
		t.Error("the same process is another")
	}
	// Samples after its recorded exit must also belong to it.
	if later := p.get(pid, clock(unix.CLOCK_MONOTONIC)); !procfs.SameStart(later.Start, start) {
		t.Errorf("after its end it is %+v", later.Proc)
	}
	self := p.get(uint32(os.Getpid()), clock(unix.CLOCK_MONOTONIC))
	if self.Start == 0 || self.MntNS != mntns || !strings.HasSuffix(self.Exe, ".test") {
		t.Errorf("%+v", self.Proc)
	}
	// A sample from before this process's start belongs to an earlier process with the PID.
	if before := p.get(uint32(os.Getpid()), 1); before.Start != 0 {
		t.Errorf("%+v", before.Proc)
	}
}

// TestReasons requires a description for each reason of this profiler version.
func TestReasons(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.opentelemetry.io/ebpf-profiler").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(strings.TrimSpace(string(dir)) + "/tools/errors-codegen/errors.json")
	if err != nil {
		t.Fatal(err)
	}
	var reasons []struct {
		ID   uint32 `json:"id"`
		Name string `json:"name"`
	}
	if err := json.Unmarshal(text, &reasons); err != nil || len(reasons) < 50 {
		t.Fatalf("%d reasons, %v", len(reasons), err)
	}
	for _, r := range reasons {
		if r.ID != 0 && strings.HasPrefix(unwinder.Reason(r.ID), "reason ") {
			t.Errorf("%d (%s) has no words in pkg/unwinder/reasons.go", r.ID, r.Name)
		}
	}
}

// TestSettled requires that a known PID is not read from /proc for a moment, unless its process is young or has exited since.
func TestSettled(t *testing.T) {
	p := newProcs()
	const now = uint64(100 * time.Second)
	old := known{proc: &proc{Proc: wire.Proc{PID: 7, Start: 1}}, checked: now - uint64(100*time.Millisecond)}
	young := old
	young.proc = &proc{Proc: wire.Proc{PID: 7, Start: now - uint64(time.Second)}}
	late := old
	late.checked = now - 2*checkInterval
	for name, c := range map[string]struct {
		k    known
		last exit
		want bool
	}{
		"settled": {old, exit{}, true}, "young": {young, exit{}, false}, "long ago": {late, exit{}, false}, "nothing known": {known{proc: &proc{}}, exit{}, false},
		"ended before": {old, exit{Ended: uint64(time.Second)}, true}, "ended since": {old, exit{Ended: now}, false},
	} {
		if got := p.settled(c.k, c.last, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// If the profiler cannot distinguish files, the first one counts. A file with another build ID is a different one.
func TestSeenFiles(t *testing.T) {
	id := func(name, build string) libpf.FrameMappingFile {
		return libpf.NewFrameMappingFile(libpf.FrameMappingFileData{FileID: libpf.NewFileID(1, 2), FileName: libpf.Intern(name), GnuBuildID: build})
	}
	s := newTable(wire.NewWriter(io.Discard))
	s.see(id("app", "aa"), seenFile{inode: 1})
	s.see(id("app", "bb"), seenFile{inode: 2})
	s.see(id("app", "aa"), seenFile{inode: 3})
	for build, want := range map[string]uint64{"aa": 1, "bb": 2, "cc": 0} {
		if f, there := s.executables.Get(id("app", build)); f.inode != want || there != (want != 0) {
			t.Errorf("%s: %+v", build, f)
		}
	}
	for i := range maxFiles {
		s.see(id("app", strconv.Itoa(i)), seenFile{})
	}
	if n := s.executables.Len(); n != maxFiles {
		t.Errorf("%d files", n)
	}
	if _, there := s.executables.Get(id("app", "aa")); there {
		t.Error("a file that nobody uses is kept")
	}
}

// TestFilesInUse checks that a file keeps its path while its stacks are written, although more other files are reported meanwhile
// than are remembered.
func TestFilesInUse(t *testing.T) {
	id := func(build string) libpf.FrameMappingFile {
		return libpf.NewFrameMappingFile(libpf.FrameMappingFileData{FileID: libpf.NewFileID(1, 2), FileName: libpf.Intern("app"), GnuBuildID: build})
	}
	table := newTable(wire.NewWriter(io.Discard))
	table.see(id("in use"), seenFile{inode: 7})
	for range 3 {
		table.file(id("in use"))
		table.reset()
		table.executables.Purge()
	}
	table.file(id("in use"))
	if f := table.seen[id("in use")]; f.inode != 7 {
		t.Errorf("the file in use has the inode %d", f.inode)
	}
}

// The profiler makes one buffer for all CPUs, and rounds its size up to a power of two.
func TestBufferShare(t *testing.T) {
	for cpus, want := range map[int]int{1: 4 << 20, 2: 4 << 20, 8: 4 << 20, 16: 8 << 20, 17: 8 << 20, 64: 8 << 20, 160: 8 << 20, 331: 8 << 20, 332: 16 << 20, 663: 16 << 20, 664: 32 << 20} {
		size := 1
		for size < bufferShare(cpus)*cpus*support.Sizeof_Trace {
			size *= 2
		}
		if size != want {
			t.Errorf("%d CPUs: %d bytes, not %d", cpus, size, want)
		}
	}
}
