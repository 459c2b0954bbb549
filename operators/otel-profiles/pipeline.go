package otelprofiles

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

// schemaURL is the version of the semantic conventions for attribute names.
const schemaURL = "https://opentelemetry.io/schemas/1.41.0"

// Reason says why a row is not exported. Package export defines the exporter's own reasons.
type Reason string

// For these reasons, a row does not reach the exporter's queue.
const (
	ReasonSampledOut    Reason = "sampled_out"    // by the exporter's setting sampling
	ReasonZero          Reason = "zero_value"     // the value or the sum is zero
	ReasonFull          Reason = "window_full"    // too many distinct stacks within one window
	ReasonResourceLimit Reason = "resource_limit" // too many distinct stacks in one container
	ReasonClosed        Reason = "closed"         // the row came after the gadget was closed
	ReasonPanic         Reason = "internal_error" // reading the row panicked: a bug, logged
)

// pipeline adds up the rows of one data source for one exporter. A source feeds it.
type pipeline struct {
	inst     *instance
	ds       datasource.DataSource
	plan     *fieldmap.Plan
	sameKeys bool // keys of rows equal those of the source's first pipeline
	agg      *profile.Aggregator
	exp      *shared
	interval time.Duration
	limits   profile.Limits
	sampling uint64 // 1 in this number of rows is kept
	timed    bool   // samples keep timestamps
	last     bool   // a sample's newest row replaces earlier ones

	capping sync.Mutex // guards cap
	cap     *fieldmap.ValueCap

	closed  atomic.Bool
	read    atomic.Int64
	dropped map[Reason]*atomic.Int64 // has an entry for every reason

	// The following fields belong to the goroutine that flushes.
	next     time.Time
	retry    time.Time // next check of a flush that waits for names
	since    time.Time // start of the window
	exported atomic.Int64
	replaced atomic.Int64
	fates    [len(profile.Fates{})]atomic.Int64
	said     warnings.Rate // limits each kind of warning
	reported Counts
	// cappedBefore is the value of cap.Dropped at the last flush.
	cappedBefore uint64
	kernelBefore int // plan.KernelChanges at the last flush
}

// maxTypes limits the number of values in a row, because they must fit on the callback's stack.
const maxTypes = 8

// maxSourceBytes limits the memory for one data source's sums, across all of its exporters. Tests reduce it.
var maxSourceBytes int64 = 64 << 20

// aggregatorConfig returns the configuration of the aggregator for an exporter and a data source, without its memory limit.
func aggregatorConfig(cfg config.Exporter, d fieldmap.Descriptor, typ datasource.Type) profile.Config {
	c := profile.Config{
		Scope: d.Scope, SchemaURL: schemaURL, Types: d.Types, PeriodType: d.PeriodType, Period: d.Period,
		TextAttributes: cfg.StringAttributes, HashedMappings: cfg.HashedMappings, Demangle: stack.Demangle,
		DoubleFunctions: cfg.DoubleFunctions, NameUnnamed: cfg.NameUnnamed, HostServices: cfg.HostServices,
	}
	if cfg.NativeDefault {
		c.DefaultFrameType = profile.FrameNative
	}
	if d.Last {
		c.Aggregation = profile.AggregateLast
		if typ == datasource.TypeArray {
			c.Aggregation = profile.AggregateSnapshot
		}
	}
	switch cfg.SampleShape {
	case "timestamps":
		c.Shape = profile.ShapeTimestamps
	case "single":
		c.Shape = profile.ShapeSingle
	case "sum":
	default:
		switch {
		case d.Timestamps && d.Counted:
			c.Shape = profile.ShapeTimestamps // every value is 1, so it need not be sent
		case d.Timestamps:
			c.Shape = profile.ShapeEvents
		}
	}
	c.State = d.Last && c.Shape == profile.ShapeSum
	if cfg.NameLabel && d.Name != d.PeriodType.Type && !onCPU(d) { // receivers that need this label use a special name for on-CPU profiles
		c.NameLabel = d.Name
	}
	return c
}

// newPipeline creates a pipeline. The data source's memory is divided equally among its pipelines, whose number is shares.
func newPipeline(inst *instance, ds datasource.DataSource, plan *fieldmap.Plan, exp *shared, shares int) (*pipeline, error) {
	cfg, d := exp.cfg, plan.Descriptor()
	if len(d.Types) > maxTypes {
		return nil, fmt.Errorf("profiles.value-field names %d fields: name at most %d", len(d.Types), maxTypes)
	}
	c := aggregatorConfig(cfg, d, ds.Type())
	c.MaxBytes = maxSourceBytes / int64(shares)
	if cfg.Preset == "elastic" && !onCPU(d) {
		inst.log.Warnf("%s: data source %q: exporter %q is for Elastic, which only accepts on-CPU samples (type samples, unit count, period in cpu nanoseconds). It rejects the samples of this gadget: choose another exporter", Name, ds.Name(), cfg.Name)
	}
	p := &pipeline{
		inst: inst, ds: ds, plan: plan, agg: profile.New(c), exp: exp,
		interval: cfg.Batch.Interval, limits: profile.Limits{MaxBytes: int(cfg.Batch.MaxRequestSize)},
		sampling: uint64(max(cfg.Sampling, 1)), timed: c.Shape != profile.ShapeSum, since: time.Now(),
		cap:  fieldmap.NewValueCap(cfg.MaxValuesPerAttribute),
		said: warnings.Rate{Every: 10 * time.Minute},
		dropped: map[Reason]*atomic.Int64{
			ReasonSampledOut: {}, ReasonZero: {}, ReasonFull: {}, ReasonResourceLimit: {}, ReasonClosed: {}, ReasonPanic: {},
		},
	}
	switch maxAge := cfg.Queue.MaxAge; {
	case inst.interval >= maxAge && inst.interval > 0:
		inst.log.Warnf("%s: ignoring --%s=%s, because exporter %q drops rows that are older than %s (sending_queue.max_age). Its interval remains %s (batch.interval): raise sending_queue.max_age, or shorten the interval",
			Name, ParamInterval, inst.interval, cfg.Name, maxAge, p.interval)
	case inst.interval > 0:
		p.interval = inst.interval
	}
	if inst.names != nil {
		inst.names.KeepFor(2 * p.interval) // late names are requested again at the end of the interval
	}
	if c.Aggregation == profile.AggregateLast {
		// Only the newest row counts. Sampling would multiply its value by N.
		p.last, p.sampling = true, 1
	}
	return p, nil
}

// onCPU reports whether profiles contain CPU samples. Elastic rejects all other profiles.
func onCPU(d fieldmap.Descriptor) bool {
	return slices.Equal(d.Types, []profile.ValueType{{Type: "samples", Unit: "count"}}) &&
		d.PeriodType == profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
}

// times returns v * n, limited to the range of int64. n must be positive.
func times(v, n int64) int64 {
	switch {
	case n == 1: // nearly always
		return v
	case v > math.MaxInt64/n:
		return math.MaxInt64
	case v < math.MinInt64/n:
		return math.MinInt64
	}
	return v * n
}

// resource reads a row's resource. The caller holds the source's mutex cold.
func (p *pipeline) resource(d datasource.Data) profile.Resource {
	r := p.plan.Resource(d)
	p.limit(&r.Attributes, &r.Dropped)
	return r
}

// limit removes attributes with too many distinct values.
func (p *pipeline) limit(attributes *[]profile.Attribute, dropped *int) {
	p.capping.Lock()
	defer p.capping.Unlock()
	n := len(*attributes)
	*attributes = p.cap.Filter(*attributes)
	*dropped += n - len(*attributes)
}

func (p *pipeline) wake() {
	select {
	case p.inst.wake <- struct{}{}:
	default:
	}
}

// earlyFlush is the shortest time between two flushes of windows that fill up early. A workload that constantly produces new
// stacks must not make the exporter send continuously.
const earlyFlush = time.Second

// due returns when the window must be flushed.
func (p *pipeline) due() time.Time {
	if early := p.since.Add(earlyFlush); p.agg.NearFull() && early.Before(p.next) {
		return early
	}
	if p.retry.After(p.next) {
		return p.retry
	}
	return p.next
}

// schedule sets the end of the next window. It skips intervals that were missed, for example after a suspend.
func (p *pipeline) schedule(now time.Time) {
	if p.next.After(now) {
		return
	}
	if p.next = p.next.Add(p.interval); p.next.Before(now) {
		p.next = now.Add(p.interval)
	}
}

// If a stack first occurs shortly before an interval ends, its names can arrive slightly late. So a due window waits for names
// that are being looked up. It waits at most lateNames, and at most a quarter of the interval.
const (
	lateNames        = 5 * time.Second
	namePollInterval = 50 * time.Millisecond
)

// waits reports whether a due window must wait for names, and sets retry.
func (p *pipeline) waits(now time.Time) bool {
	p.retry = time.Time{}
	if p.agg.NearFull() || now.After(p.next.Add(min(lateNames, p.interval/4))) || !p.agg.Ask() {
		return false
	}
	p.retry = now.Add(namePollInterval)
	return true
}

// clockJump is the smallest forward jump of the clock that windowStart corrects.
const clockJump = time.Minute

// windowStart returns the wall-clock time at which a window started that ends now. If the clock was set forward or the machine
// was suspended, the window did not last as long as the clock says. Otherwise, the start is exactly the end of the last window.
func windowStart(since, now time.Time) time.Time {
	lasted := now.Sub(since) // by the monotonic clock, which does not run during a suspend
	if now.Round(0).Sub(since.Round(0)) > lasted+clockJump {
		return now.Round(0).Add(-lasted)
	}
	return since
}

// flush closes the window and passes it on to the exporter.
func (p *pipeline) flush(now time.Time) {
	if !now.After(p.since) {
		now = p.since.Add(1)
	}
	since := windowStart(p.since, now)
	p.renew()
	limits := p.limits
	limits.Emit = func(m profile.Message) {
		owner := ""
		if m.Resource != 0 {
			owner = strconv.FormatUint(m.Resource, 36) // all services outside containers have the owner profile.HostOwner
		}
		p.exported.Add(m.Rows)
		p.exp.Enqueue(export.Message{
			Body: m.Body, Rows: m.Rows, Samples: m.Samples, Profiles: m.Profiles, Start: since, End: now, Owner: owner, Origin: p.inst.label.Value.AsString(),
		})
	}
	f := p.agg.Flush(uint64(since.UnixNano()), uint64(now.UnixNano()), limits)
	if f.Renewed {
		p.capping.Lock()
		p.cap.Reset()
		p.capping.Unlock()
	}
	p.dropped[ReasonZero].Add(f.Vanished)
	p.replaced.Add(f.Replaced)
	for fate, n := range f.Fates {
		p.fates[fate].Add(n)
	}
	p.since = now
	c := p.counts()
	c.report(p.reported, attribute.String("exporter", p.exp.cfg.Name), p.inst.label)
	p.reported = c
	p.reportStacks(c)
	p.warnOfLosses(f)
	p.warnOfAccess()
}

// renew renews the aggregator's samples if their attributes or frames may have changed.
func (p *pipeline) renew() {
	p.capping.Lock()
	capped := p.cap.Dropped() - p.cappedBefore
	p.cappedBefore += capped
	p.capping.Unlock()
	if capped > 0 {
		p.agg.Renew() // the cap starts at 0 in each window, but only new samples are checked
		p.warn("capped", "in the last interval, %d samples or resources lost an attribute, because it has more than %d values (max_values_per_attribute): remove this attribute with the setting attributes of exporter %q, or raise the limit", capped, p.exp.cfg.MaxValuesPerAttribute, p.exp.cfg.Name)
	}
	if n := p.plan.KernelChanges(); n != p.kernelBefore {
		p.kernelBefore = n
		p.agg.Renew() // the addresses may now belong to other modules or eBPF programs
	}
}

// warnOfLosses logs what is missing in the exported data. f is the result of the last window.
func (p *pipeline) warnOfLosses(f profile.Flushed) {
	if f.Fates[profile.Lost] > 0 {
		p.warn("lost", "%d of %d rows so far lack their stack or a part of it: the gadget's stack map was full, or the kernel could not read the stack", p.fates[profile.Lost].Load(), p.read.Load())
	}
	if f.ClippedEvents > 0 {
		p.warn("clipped", "%d timestamps of one sample did not fit into a request and were dropped: set sample_shape to sum for this gadget", f.ClippedEvents)
	}
	ps := p.plan.Stats()
	if ps.ShortRows > 0 {
		p.warn("short", "%d times so far, a row had a field that is shorter than the gadget declares: such fields count as empty", ps.ShortRows)
	}
	if ps.Unnamed > 0 {
		p.tell(logger.InfoLevel, "unnamed", "%d kernel stacks so far have addresses instead of function names; the last error: %v", ps.Unnamed, ps.UnnamedReason)
	}
	if ps.CutResourceAttributes > 0 {
		p.warn("cut", "some containers or the host have more attributes than max_resource_attributes, so the least important ones are dropped: remove other attributes with the setting attributes of exporter %q", p.exp.cfg.Name)
	}
	if n := p.dropped[ReasonFull].Load(); n > 0 {
		p.warn("full", "%d rows so far were dropped, because an interval had too many distinct stacks: shorten batch.interval of exporter %q", n, p.exp.cfg.Name)
	}
	if n := p.dropped[ReasonResourceLimit].Load(); n > 0 {
		p.warn("resource", "%d rows so far were dropped, because a container had too many distinct stacks in an interval: shorten batch.interval of exporter %q", n, p.exp.cfg.Name)
	}
}

// warnOfAccess logs that frames or services have no names because this process lacks rights.
func (p *pipeline) warnOfAccess() {
	if n := p.inst.names; n != nil {
		if err := n.Err(); err != nil {
			p.warn("processes", "cannot find the files and functions of programs: %v; give this process the host's PID namespace (hostPID, HOST_ROOT), CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN", err)
		} else {
			read, _ := n.Stats()
			if read.Denied > 0 {
				p.once("denied", "no access to %d processes so far: their frames have no names; grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN", read.Denied)
			}
			if read.DeniedFiles > 0 {
				p.once("denied files", "no access to %d files so far: their frames have no names; grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN, and CAP_DAC_READ_SEARCH for files that only their owner can read", read.DeniedFiles)
			}
		}
	}
	if c := p.inst.contexts; c != nil {
		if n := c.Denied.Load(); n > 0 {
			p.once("contexts denied", "no access to the process contexts of %d processes so far (setting process_context): their service names come from other sources; grant CAP_SYS_PTRACE", n)
		}
		if n := c.Refused.Load(); n > 0 {
			p.once("contexts refused", "ignoring the process contexts of %d processes so far (setting process_context): their container or host service exceeds the hourly limit of services or instances", n)
		}
	}
}

// warn logs a warning at most once per kind in ten minutes.
func (p *pipeline) warn(kind, format string, args ...any) {
	p.tell(logger.WarnLevel, kind, format, args...)
}

// once logs a warning about a permanent condition once per run.
func (p *pipeline) once(kind, format string, args ...any) {
	if !p.said.Had(kind) {
		p.warn(kind, format, args...)
	}
}

func (p *pipeline) tell(level logger.Level, kind, format string, args ...any) {
	if _, ok := p.said.Due(kind); ok {
		p.inst.log.Logf(level, "%s: data source %q: %s", Name, p.ds.Name(), fmt.Sprintf(format, args...))
	}
}

// Counts accounts for a data source's rows: those that are not in Exported or Dropped are in the open window. The exporter's Stats
// account for the exported rows.
type Counts struct {
	Read, Exported int64
	Dropped        map[Reason]int64
	// Fates counts the rows in closed windows by the fate of their stacks.
	Fates profile.Fates
	// Frames counts the user frames of distinct stacks by state.
	Frames [names.NumStates]int64
	// Replaced counts strings with replaced characters, see profile.Flushed.
	Replaced int64
}

// stacks describes missing parts of stacks. It returns "" if nothing is missing.
func (c Counts) stacks() string {
	all := c.closed()
	var list []string
	for _, f := range []struct {
		fate profile.Fate
		what string
	}{{profile.Lost, "partly lost"}, {profile.Truncated, "truncated (too deep, or the unwinder could not continue)"}, {profile.Incomplete, "without their outermost functions"}} {
		if n := c.Fates[f.fate]; n > 0 {
			list = append(list, fmt.Sprintf("%.1f %% %s", 100*float64(n)/float64(all), f.what))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "; stacks: " + strings.Join(list, ", ")
}

func (c Counts) droppedTotal() int64 {
	n := int64(0)
	for _, v := range c.Dropped {
		n += v
	}
	return n
}

// counts returns the current counts. They are consistent while no row is being read and no flush runs.
func (p *pipeline) counts() Counts {
	c := Counts{Exported: p.exported.Load(), Dropped: map[Reason]int64{}}
	for fate := range p.fates {
		c.Fates[fate] = p.fates[fate].Load()
	}
	for state, n := range p.plan.Stats().UserFrames {
		c.Frames[state] = int64(n)
	}
	for reason, dropped := range p.dropped {
		if n := dropped.Load(); n > 0 {
			c.Dropped[reason] = n
		}
	}
	c.Read, c.Replaced = p.read.Load(), p.replaced.Load()
	return c
}
