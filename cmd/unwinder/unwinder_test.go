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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	assert.Equal(t, []bool{false, false, true, true}, []bool{i.Python.Disabled, i.Hotspot.Disabled, i.Ruby.Disabled, i.Go.Disabled})
	// All languages are known that the starter accepts.
	for _, names := range wire.FrameNames {
		c := config{languages: names.Setting}
		if (unwinder.Settings{Languages: c.languages}).Check() != nil {
			continue
		}
		assert.Equal(t, c.languages == "native", c.interpreters() == interpreterconfig.NoInterpreters(), c.languages)
	}
}

func TestLanguageOf(t *testing.T) {
	for exe, want := range map[string]wire.FrameType{
		"python3.11": wire.FramePython, "python": wire.FramePython, "pythonista": wire.FrameUnknown, "java": wire.FrameJVM, "javac": wire.FrameUnknown,
		"node": wire.FrameV8, "nodemon": wire.FrameUnknown, "php-fpm8.2": wire.FramePHP, "perl5.36.0": wire.FramePerl, "beam.smp": wire.FrameBEAM, "dotnet": wire.FrameDotnet, "": wire.FrameUnknown,
	} {
		assert.Equal(t, want, languageOf(exe), exe)
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
	assert.EqualValues(t, 1, k.TraceID[0])
	assert.EqualValues(t, 0x18, k.SpanID[7])
	assert.Equal(t, []wire.Label{{Key: "tenant", Value: "ab"}, {Key: "zone", Value: strings.Repeat("z", maxLabel)}}, sorted(k.Labels))

	c = config{labels: []string{"tenant"}}
	k = c.tell(all, libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	assert.EqualValues(t, libpf.InvalidAPMTraceID, k.TraceID, "spans that nobody asked for")
	assert.EqualValues(t, libpf.InvalidAPMSpanID, k.SpanID)

	c = config{labels: []string{"span_id", "trace_id"}}
	k = c.tell(all, libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	assert.Equal(t, []wire.Label{{Key: "span_id", Value: span}, {Key: "trace_id", Value: trace}}, sorted(k.Labels))

	c = config{spans: true}
	k = c.tell(label("trace_id", "01"+strings.Repeat("x", 30), "span_id", span), libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	assert.EqualValues(t, libpf.InvalidAPMSpanID, k.SpanID, "a trace that is no number")

	c = config{spans: true}
	k = c.tell(label("trace_id", "no hexadecimal", "span_id", span), libpf.InvalidAPMTraceID, libpf.InvalidAPMSpanID)
	assert.EqualValues(t, libpf.InvalidAPMSpanID, k.SpanID, "a span without its trace links to nothing")
	assert.Nil(t, k.Labels)
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
	require.NoError(t, s.ReportTraceEvent(x, &samples.TraceEventMeta{Value: 1}))
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
			assert.Equal(t, []uint64{1, 7, 2}, []uint64{x.ID, uint64(x.Proc.PID), x.Proc.MntNS}, "%+v", x)
			if x.Stack.Abort != 0 {
				aborted++
				assert.EqualValues(t, 4012, x.Stack.Abort)
				assert.Len(t, x.Stack.Frames, 1)
				continue
			}
			byLine[x.Stack.Frames[0].Line]++
		}
		last = ev.Flush.Stats
	}
	assert.Equal(t, map[uint64]uint64{14: 3, 15: 1}, byLine)
	assert.EqualValues(t, 1, aborted)
	assert.Equal(t, []uint64{6, 1, 1}, []uint64{last.Taken, last.Idle, last.Aborts[4012]})
	l := last.Languages[wire.FramePython]
	assert.Equal(t, []uint64{4, 5, 1}, []uint64{l.Frames, l.Expected, l.Missing})
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
		assert.Equal(t, p.want, poll(p.samples, p.pids...), "poll %d", i)
	}
	s.ReportExecutable(&reporter.ExecutableMetadata{Mapping: &process.RawMapping{}, Process: process.New(1, 1)})
	assert.True(t, poll(1, 1), "a file that was read for the first time waits for its time")
	// A new process does not wait until all samples of a busy machine are handled.
	told := func(pid uint32, last time.Time) bool {
		s.procs.pids[pid] = known{proc: &proc{Proc: wire.Proc{PID: pid, Start: 1}}, alive: 1 << 62}
		s.pid, s.woken = pid, last
		s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame}))
		return len(s.due) > 0
	}
	assert.False(t, told(10, time.Now().Add(time.Hour)), "written twice at once")
	assert.True(t, told(11, time.Now().Add(-pollInterval)), "a new process waits for all that the kernel has")
}

// If nobody reads, the number of kept stacks must be limited, and dropped stacks must be counted.
func TestSlowReader(t *testing.T) {
	r, w := io.Pipe()
	s := newTestSampler(w)
	const n = maxPending + maxStacks
	for i := range n {
		s.report(t, trace(libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: libpf.AddressOrLineno(i)}))
	}
	assert.LessOrEqual(t, len(s.stacks), maxStacks)
	assert.LessOrEqual(t, len(s.events), maxPending)
	assert.Equal(t, len(s.stacks), s.kept, "each stack has one frame")
	ended := make(chan uint64)
	go func() {
		in, got := wire.NewReader(r), uint64(0)
		for {
			ev, err := in.Next()
			if err != nil {
				assert.ErrorIs(t, err, io.EOF)
				ended <- got
				return
			}
			got += uint64(len(ev.Flush.Unwound))
		}
	}()
	s.close()
	w.Close()
	got := <-ended
	assert.NotZero(t, s.stats.Full)
	assert.EqualValues(t, n, got+s.stats.Full, "%d arrived", got)
}

// A process is avoided while it runs. A later process with its PID is not.
func TestAvoided(t *testing.T) {
	pid := uint32(os.Getpid())
	start, _, err := readProc(pid)
	require.NoError(t, err)
	for _, c := range []struct {
		start uint64
		want  bool
	}{{start, true}, {start - procfs.Tick, false}} {
		a := parseAvoided(fmt.Sprintf("2:3,%d:%d,1:2", pid, c.start))
		for range 2 { // as at each event
			assert.Equal(t, c.want, a.is(pid), "the process with the start %d", c.start)
		}
		assert.False(t, a.is(1<<30), "another one is avoided")
	}
}

// An exited process must still be known, and must not be confused with a later process with the same PID.
func TestProcessThatHasEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("eBPF wants root")
	}
	e, err := watchExits()
	require.NoError(t, err)
	defer e.close()
	p := newProcs()
	p.exits = e

	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pid, during := uint32(cmd.Process.Pid), clock(unix.CLOCK_MONOTONIC)
	start, mntns, err := readProc(pid)
	require.NoError(t, err)
	require.NoError(t, errors.Join(in.Close(), cmd.Wait()))
	got := p.get(pid, during)
	assert.True(t, procfs.SameStart(got.Start, start), "%+v, not %d", got.Proc, start)
	assert.NotZero(t, mntns)
	assert.Equal(t, mntns, got.MntNS)
	assert.Same(t, got, p.get(pid, during))
	// Samples after its recorded exit must also belong to it.
	later := p.get(pid, clock(unix.CLOCK_MONOTONIC))
	assert.True(t, procfs.SameStart(later.Start, start), "%+v, not %d", later.Proc, start)
	self := p.get(uint32(os.Getpid()), clock(unix.CLOCK_MONOTONIC))
	assert.NotZero(t, self.Start)
	assert.Equal(t, mntns, self.MntNS)
	assert.Regexp(t, `\.test$`, self.Exe)
	// A sample from before this process's start belongs to an earlier process with the PID.
	assert.Zero(t, p.get(uint32(os.Getpid()), 1).Start)
}

// TestReasons requires a description for each reason of this profiler version.
func TestReasons(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.opentelemetry.io/ebpf-profiler").Output()
	require.NoError(t, err)
	text, err := os.ReadFile(strings.TrimSpace(string(dir)) + "/tools/errors-codegen/errors.json")
	require.NoError(t, err)
	var reasons []struct {
		ID   uint32 `json:"id"`
		Name string `json:"name"`
	}
	require.NoError(t, json.Unmarshal(text, &reasons))
	require.GreaterOrEqual(t, len(reasons), 50)
	for _, r := range reasons {
		if r.ID != 0 {
			assert.NotRegexp(t, "^reason ", unwinder.Reason(r.ID), "%s has no words in pkg/unwinder/reasons.go", r.Name)
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
		assert.Equal(t, c.want, p.settled(c.k, c.last, now), name)
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
		f, there := s.executables.Get(id("app", build))
		assert.Equal(t, want, f.inode, build)
		assert.Equal(t, want != 0, there, build)
	}
	for i := range maxFiles {
		s.see(id("app", strconv.Itoa(i)), seenFile{})
	}
	assert.Equal(t, maxFiles, s.executables.Len())
	_, there := s.executables.Get(id("app", "aa"))
	assert.False(t, there, "a file that nobody uses is kept")
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
	assert.EqualValues(t, 7, table.seen[id("in use")].inode, "the file in use")
}

// The profiler makes one buffer for all CPUs, and rounds its size up to a power of two.
func TestBufferShare(t *testing.T) {
	for cpus, want := range map[int]int{1: 4 << 20, 2: 4 << 20, 8: 4 << 20, 16: 8 << 20, 17: 8 << 20, 64: 8 << 20, 160: 8 << 20, 331: 8 << 20, 332: 16 << 20, 663: 16 << 20, 664: 32 << 20} {
		size := 1
		for size < bufferShare(cpus)*cpus*support.Sizeof_Trace {
			size *= 2
		}
		assert.Equal(t, want, size, "%d CPUs", cpus)
	}
}
