package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	profilerlog "go.opentelemetry.io/ebpf-profiler/log"
	"go.opentelemetry.io/ebpf-profiler/metrics"
	"go.opentelemetry.io/ebpf-profiler/times"
	"go.opentelemetry.io/ebpf-profiler/tracer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// monitorInterval is the time between two reads of the kernel's counters.
	monitorInterval = 5 * time.Second
	clockInterval   = 3 * time.Minute
	// drainTime is longer than the profiler's poll interval.
	drainTime = 300 * time.Millisecond
)

type config struct {
	scale     int
	chains    []wire.ChainKind // chains that gadgets' programs may call
	languages string
	spans     bool
	labels    []string
	avoid     avoided
	wanted    <-chan uint32 // processes to read before their first event
}

// interpreters converts the list of languages for the profiler. Native code is always unwound. The starter has checked the list.
func (c config) interpreters() interpreterconfig.Config {
	if c.languages == "all" {
		return interpreterconfig.AllInterpreters()
	}
	i := interpreterconfig.NoInterpreters()
	configs := map[string]*interpreter.BaseConfig{
		"python": &i.Python.BaseConfig, "java": &i.Hotspot.BaseConfig, "node": &i.V8.BaseConfig, "ruby": &i.Ruby.BaseConfig,
		"php": &i.PHP.BaseConfig, "perl": &i.Perl.BaseConfig, "dotnet": &i.Dotnet.BaseConfig, "beam": &i.BEAM.BaseConfig,
		"lua": &i.LuaJIT.BaseConfig, "go": &i.Go.BaseConfig, "native": {},
	}
	for name := range strings.SplitSeq(c.languages, ",") {
		*configs[name] = interpreter.BaseConfig{}
	}
	return i
}

// running is a started tracer.
type running struct {
	*tracer.Tracer
	traces chan *libpf.EbpfTrace
	end    context.CancelFunc
	exits  *exits
	reader *processReader
	chains *gadgetChains
}

// start loads the profiler's programs, and the programs that gadgets call.
func start(ctx context.Context, c config, s *sampler, logger *slog.Logger) (*running, error) {
	languages := c.interpreters()
	if !c.spans && len(c.labels) == 0 {
		languages.Go.Labels.Disabled = true
	}
	// The frame reader names Go functions by address, like other native code, and adds inlined functions.
	languages.Go.Symbolization.Disabled = true
	profilerlog.SetLogger(*logger.With("from", "profiler"))
	metrics.Start(s.meter)

	// The tracer outlives ctx, so all its samples are read.
	tracing, end := context.WithCancel(context.WithoutCancel(ctx))
	times.StartRealtimeSync(tracing, clockInterval)
	t, err := newTracer(tracing, c, languages, s)
	if err != nil {
		end()
		return nil, fmt.Errorf("loading the eBPF programs: %w", err)
	}
	r := &running{Tracer: t, traces: make(chan *libpf.EbpfTrace, 64), end: end}
	r.reader, err = newProcessReader(t, c, s, logger)
	if err != nil {
		r.close()
		return nil, err
	}
	go r.reader.run(tracing)
	if err := t.AttachSchedMonitor(); err != nil {
		r.close()
		return nil, fmt.Errorf("watching for process exits: %w", err)
	}
	if r.chains, err = serveGadgets(tracing, t, c, languages); err != nil {
		r.close()
		return nil, err
	}
	if err := r.chains.watchExecs(); err != nil {
		logger.Warn("cannot watch for execve, so the stacks of a process can be incomplete or wrong after it executes another program", "error", err)
	}
	_ = t.AttachPrctlMonitor() // without it, changes of process contexts are detected later
	if err := t.StartMapMonitors(tracing, r.traces); err != nil {
		r.close()
		return nil, fmt.Errorf("reading the samples: %w", err)
	}
	if r.exits, err = watchExits(); err != nil {
		logger.Warn("cannot watch for exits of processes, so a process that exits within 0.25 s can be mistaken for the next one with its PID", "error", err)
	}
	s.procs.exits = r.exits
	go serveMore(ctx, entriesSocket, r.chains.load, logger)
	return r, nil
}

// bufferShare returns each CPU's share of the kernel's stack buffer, in the unit of tracer.Config.SamplesPerSecond: the profiler
// multiplies it by the number of CPUs and by 25 KiB, and rounds up to a power of two. A stack takes 1 KiB on average, and all
// stacks are read four times a second. If other programs keep all CPUs busy, seconds can pass between two reads, so the buffer has
// at least 4 MiB. One goroutine handles about 10,000 stacks a second, which is 2.5 MiB for each read. So if a buffer of 8 MiB is
// not enough for long, a larger buffer is not, either. With 332 to 663 CPUs, the buffer has
// 16 MiB, and with more CPUs 32 MiB.
func bufferShare(cpus int) int {
	const each, least, most = 20, 160, 320 // 320 * 25 KiB is nearly 8 MiB
	return max(1, min(max(each, least/cpus), most/cpus))
}

// newTracer loads the profiler's own programs.
func newTracer(ctx context.Context, c config, languages interpreterconfig.Config, s *sampler) (*tracer.Tracer, error) {
	return tracer.NewTracer(ctx, &tracer.Config{
		TraceReporter:      s,
		ExecutableReporter: s,
		Intervals:          times.New(time.Second, monitorInterval, time.Minute),
		InterpretersConfig: languages,
		FilterIdleFrames:   true,
		SamplesPerSecond:   bufferShare(runtime.NumCPU()),
		MapScaleFactor:     c.scale,
		KernelVersionCheck: true,
		// Sample all of the time.
		ProbabilisticInterval: time.Minute, ProbabilisticThreshold: tracer.ProbabilisticThresholdMax,
	})
}

func (r *running) close() {
	r.Close()
	r.end()
	if r.exits != nil {
		r.exits.close()
	}
}
