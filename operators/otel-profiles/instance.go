package otelprofiles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// instance holds the operator's state for one gadget run. Rows can arrive before Start, and after Stop until Close. Inspektor
// Gadget can call Close directly after the instantiation, and twice.
type instance struct {
	op       *Operator
	targets  targets
	values   api.ParamValues
	remote   bool
	interval time.Duration // ParamInterval; 0: each exporter's own
	// mustDeliver is the value of ParamCheck.
	mustDeliver bool

	gadget    string
	label     attribute.KeyValue // the gadget's attribute in metrics
	log       logger.Logger
	cancel    func() // ends the gadget
	exporters []*shared
	pipelines []*pipeline
	maps      *stackMaps
	rows      *tune.RowCount // nil if the gadget's programs do not need it
	lost      func() int64   // events that Inspektor Gadget has lost
	lostSoFar int64          // the part of them that is in the metrics; protected by flushing
	// uncollected lists the flags for collecting stacks that are off.
	uncollected []string
	otelStacks  bool // the gadget has Inspektor Gadget's flag for whole stacks
	names       *namer
	// unreadFile is the last error from reading a file. It is set when names is released.
	unreadFile error
	hosts      *hostproc.Resolver    // nil until an exporter needs it
	contexts   *proccontext.Resolver // nil until an exporter needs it

	started   bool          // all operators have started, because this one starts last
	stop      chan struct{} // closed to end the flusher
	stopped   chan struct{} // closed when the flusher has ended
	wake      chan struct{} // signals that a pipeline is nearly full
	flushing  sync.Mutex    // prevents concurrent flushes
	closeOnce sync.Once
	closed    chan struct{}
}

// Name implements operators.DataOperatorInstance.
func (i *instance) Name() string { return Name }

// ExtraParams implements operators.ExtraParams.
func (i *instance) ExtraParams(operators.GadgetContext) api.Params {
	if i.remote {
		return nil
	}
	return extraParams()
}

// PreStart adapts the gadget to the machine, even if nothing is exported. It then subscribes to the data sources to export. It
// returns an error if an exporter is unknown or misconfigured. If a data source has wrong annotations, PreStart logs the mistake
// and exports the other data sources.
func (i *instance) PreStart(gadgetCtx operators.GadgetContext) error {
	if err := tune.Apply(gadgetCtx, tune.ThisMachine()); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	var err error
	if i.rows, err = tune.CountRows(gadgetCtx); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	if i.targets.empty() {
		for _, key := range localParams {
			if i.values[key] != "" {
				gadgetCtx.Logger().Warnf("%s: --%s has no effect without --%s, so nothing is exported. To export without a configured exporter, set --%s=%s", Name, key, ParamExporter, ParamExporter, config.BuiltIn)
			}
		}
		return nil
	}
	i.gadget, i.log, i.cancel = gadgetCtx.ImageName(), gadgetCtx.Logger(), gadgetCtx.Cancel
	i.lost = func() int64 { return tune.LostEvents(gadgetCtx) }
	i.label = theGadgetNames.of(i.gadget)
	i.stop, i.stopped, i.closed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	i.wake = make(chan struct{}, 1)
	i.maps = newStackMaps(gadgetCtx)

	set := i.op.load(i.flags(), i.remote)
	for _, exporter := range i.targets.names() {
		for _, n := range set.NoticesFor(exporter) {
			if _, first := i.op.exporters.logged.Due(n); first {
				i.log.Warnf("%s: %s", Name, n)
			}
		}
	}
	sources := gadgetCtx.GetDataSources()
	for _, name := range i.targets.inRun {
		if _, ok := sources[name]; !ok {
			return fmt.Errorf("parameter %q: the gadget has no data source %q; it has %s", ParamExporter, name, quotedList(slices.Sorted(maps.Keys(sources))))
		}
	}
	if err := checkAnnotations(gadgetCtx, sources); err != nil {
		return err
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		more, err := i.export(gadgetCtx, set, sources[name])
		if err != nil {
			i.giveBack()
			return fmt.Errorf("%s: %w", Name, err)
		}
		faults = append(faults, more...)
	}
	if len(i.pipelines) == 0 {
		i.giveBack()
		return i.nothing(faults, tune.ReadingOf(gadgetCtx).Detached())
	}
	for _, fault := range faults {
		i.log.Errorf("%s: a data source is not exported: %v", Name, fault)
	}
	if err := i.op.add(i); err != nil {
		i.giveBack()
		return fmt.Errorf("%s: %w", Name, err)
	}
	i.collectStacks(gadgetCtx)
	i.chooseStacks(gadgetCtx)
	for _, p := range i.pipelines {
		change(theInstruments().dataSources, 1, attribute.String("exporter", p.exp.cfg.Name), i.label)
	}
	go i.run()
	return nil
}

// export subscribes to a data source for its exporters. It returns an error if an exporter is unavailable. Mistakes in the data
// source's annotations are returned in faults.
func (i *instance) export(gadgetCtx operators.GadgetContext, set *config.Set, ds datasource.DataSource) (faults []error, err error) {
	exporters, named := i.targets.of(ds.Name())
	src := &source{inst: i, ds: ds}
	for _, name := range exporters {
		cfg, err := set.Exporter(name)
		if err != nil {
			return nil, err
		}
		o := i.options(gadgetCtx, ds, cfg)
		o.First = src.plan
		plan, err := fieldmap.Compile(ds, o)
		if errors.Is(err, fieldmap.ErrNoStack) && !named {
			i.log.Debugf("%s: data source %q is not exported, because it has no field with a stack", Name, ds.Name())
			return nil, nil
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		exp, err := i.acquire(cfg)
		if err != nil {
			return nil, err
		}
		p, err := newPipeline(i, ds, plan, exp, len(exporters))
		if err != nil {
			faults = append(faults, fmt.Errorf("data source %q: %w", ds.Name(), err))
			continue
		}
		if src.plan == nil {
			src.plan = plan
		}
		p.sameKeys = plan.SameKeys(src.plan)
		src.pipes = append(src.pipes, p)
	}
	if len(src.pipes) == 0 {
		return faults, nil
	}
	if err := src.subscribe(); err != nil {
		return append(faults, fmt.Errorf("subscribing to data source %q: %w", ds.Name(), err)), nil
	}
	i.pipelines = append(i.pipelines, src.pipes...)
	for _, p := range src.pipes {
		i.log.Infof("%s: exporting data source %q to %q (%s) every %v", Name, ds.Name(), p.exp.cfg.Name, p.exp.cfg.Destination(), p.interval)
	}
	return faults, nil
}

// nothing handles a run without an exported data source. It returns an error if there are faults, if the run must deliver, or if
// nobody reads its log because it is detached. Otherwise, it logs that no data source has a stack.
func (i *instance) nothing(faults []error, detached bool) error {
	where := quotedList(i.targets.names())
	if len(faults) > 0 {
		return fmt.Errorf("%s: nothing is exported to %s: %w", Name, where, errors.Join(faults...))
	}
	err := fmt.Errorf("%s: nothing is exported to %s: gadget %q has no data source with a stack", Name, where, i.gadget)
	if i.mustDeliver || detached {
		return err
	}
	i.log.Warnf("%v", err)
	return nil
}

// acquire returns the running exporter with these settings. All data sources of the instance share it.
func (i *instance) acquire(cfg config.Exporter) (*shared, error) {
	for _, exp := range i.exporters {
		if exp.cfg.Name == cfg.Name {
			return exp, nil
		}
	}
	exp := i.op.exporters.acquire(cfg)
	i.exporters = append(i.exporters, exp)
	return exp, i.open(exp)
}

// giveBack releases the exporters of an instance that does not start. Inspektor Gadget still closes the instance, but without
// pipelines Close does nothing.
func (i *instance) giveBack() {
	for _, p := range i.pipelines {
		p.closed.Store(true)
	}
	i.pipelines = nil
	for _, exp := range i.exporters {
		if err := i.leave(exp); err != nil {
			i.log.Warnf("%s: %v", Name, err)
		}
	}
	i.exporters = nil
	i.releaseNames()
}

// leave releases an exporter. If the gadget runs in the caller's process, leave waits until the exporter has delivered its
// requests.
func (i *instance) leave(exp *shared) error {
	i.op.exporters.release(exp)
	if i.remote {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), exp.cfg.ShutdownTimeout)
	defer cancel()
	return i.op.exporters.stopUnused(ctx, exp)
}

// releaseNames releases the namer and the process contexts. The caller must make sure that no rows are read any longer.
func (i *instance) releaseNames() {
	i.flushing.Lock() // Shutdown also flushes
	defer i.flushing.Unlock()
	if i.names != nil {
		_, i.unreadFile = i.names.Stats()
		i.op.names.release()
		i.names = nil
	}
	if i.contexts != nil {
		i.op.contexts.Release((*proccontext.Resolver).Close)
		i.contexts = nil
	}
}

func (i *instance) flags() config.Flags {
	if i.remote {
		return nil
	}
	flags := config.Flags{}
	for _, name := range localParams {
		flags[name] = config.Secret(i.values[name])
	}
	return flags
}

func (i *instance) options(gadgetCtx operators.GadgetContext, ds datasource.DataSource, cfg config.Exporter) fieldmap.Options {
	o := fieldmap.Options{
		Gadget:    fieldmap.GadgetInfo{ImageName: gadgetCtx.ImageName(), Config: tune.Metadata(gadgetCtx)},
		Exporter:  cfg,
		Name:      i.values[ParamName],
		Host:      fieldmap.DetectHost(),
		KernelMap: i.maps.kernel, UserMap: i.maps.user, BuildIDMap: i.maps.buildIDs,
		MapSpec: func(name string) *ebpf.MapSpec { return tune.MapSpec(gadgetCtx, name) },
		Logger:  i.log,
	}
	// An operator that supplies the frames of all stacks also supplies the names. Then no namer is needed.
	if len(ds.GetFieldsWithTag(fieldmap.StackTag)) == 0 || fieldmap.HasIDs(ds) {
		if i.names == nil {
			i.names = i.op.names.acquire()
		}
		o.Names = i.names
	}
	if cfg.HostServices > 0 {
		if i.hosts == nil {
			i.hosts = hostproc.New(os.Getenv("HOST_ROOT"))
		}
		o.Hosts = i.hosts
	}
	if cfg.ProcessContext != config.ContextNone {
		if i.contexts == nil {
			i.contexts = i.op.contexts.Acquire(newContexts)
		}
		o.Contexts = i.contexts
	}
	if v, ok := gadgetCtx.GetVar(fieldmap.StacksVar); ok {
		o.Stacks, _ = v.(fieldmap.Stacks)
	}
	return o
}

func quotedList(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(q, ", ")
}

// Start implements operators.DataOperatorInstance.
func (i *instance) Start(gadgetCtx operators.GadgetContext) error {
	i.rows.Start(gadgetCtx)
	i.started = true
	return nil
}

// Stop implements operators.DataOperatorInstance. The eBPF operator's last rows arrive after Stop.
func (i *instance) Stop(operators.GadgetContext) error { return nil }

// lastLines is how long Close of a remote run waits after its last log line. Inspektor Gadget's RunGadget sends log lines from a
// buffer in another goroutine, and discards the rest as soon as the run has ended.
const lastLines = 100 * time.Millisecond

// Close sends the instance's remaining rows. If the gadget runs in the caller's process, Close waits for the delivery, at most
// for the exporter's shutdown_timeout. In a daemon, the shared queue delivers the rows later.
func (i *instance) Close(gadgetCtx operators.GadgetContext) error {
	if i.pipelines == nil {
		return nil
	}
	i.closeOnce.Do(func() {
		close(i.stop)
		<-i.stopped
		if !i.remote {
			i.awaitNames()
		}
		i.flush()
		for _, p := range i.pipelines {
			p.closed.Store(true)
			change(theInstruments().dataSources, -1, attribute.String("exporter", p.exp.cfg.Name), i.label)
		}
		// Send rows that arrived after the last flush and before their pipeline was closed.
		i.flush()
		i.releaseNames()
		var errs []error
		for _, exp := range i.exporters {
			// The exporter has already logged how many rows it dropped at the deadline.
			if err := i.leave(exp); err != nil && exp.Stats().Rows.Held > 0 {
				errs = append(errs, err)
			}
		}
		i.summarize()
		i.check(tune.Ended(gadgetCtx))
		if err := errors.Join(errs...); err != nil {
			i.log.Errorf("%s: %v", Name, err)
		}
		if i.remote {
			time.Sleep(lastLines)
		}
		i.op.remove(i)
		close(i.closed)
	})
	return nil
}

var _ interface {
	operators.DataOperatorInstance
	operators.PreStart
	operators.ExtraParams
} = (*instance)(nil)

var _ datasource.DataFunc = (*source)(nil).single
