package unwinder

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// OtelName is the name of the operator for Inspektor Gadget's own gadgets with --collect-otel-stack. Their programs call the
// unwinder through the hook in Inspektor Gadget's headers. Inspektor Gadget's own resolver runs a profiler in the daemon's
// process. This operator instead uses the unwinder process that all gadgets share.
const OtelName = "otel-stacks"

// otelPatience is how long a row waits for its stack and names, counted from its event. The unwinder writes four times a second.
const otelPatience = time.Second

// For each event, the gadget's program and the unwinder's entry program both read the clock. otelWindow is the maximum time
// between the two readings.
const otelWindow = 100 * time.Millisecond

type otelOperator struct{ *operator }

// Name implements operators.DataOperator.
func (otelOperator) Name() string { return OtelName }

// InstanceParams implements operators.DataOperator. The operator has no parameters other than Inspektor Gadget's flags.
func (otelOperator) InstanceParams() api.Params { return nil }

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client, and for runs without the flag.
func (o otelOperator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, _ api.ParamValues) (operators.DataOperatorInstance, error) {
	chains := tune.OtelChains(gadgetCtx)
	if gadgetCtx.IsClient() || len(chains) == 0 {
		return nil, nil
	}
	i := &otelInstance{op: o.operator, log: gadgetCtx.Logger(), chains: chains, rows: newRows(false)}
	for _, ds := range gadgetCtx.GetDataSources() {
		for _, raw := range ds.GetFieldsWithTag("type:" + ebpftypes.UserStackTypeName) {
			f := otelField{ds: ds}
			for name, field := range map[string]*datasource.FieldAccessor{"otel_correlation_id": &f.id, "boot_timestamp": &f.seen, "tgid_level0": &f.pid} {
				if found := raw.GetSubFieldsWithTag("name:" + name); len(found) == 1 {
					*field = found[0]
				} else {
					return nil, fmt.Errorf("--%s: the gadget's stacks have no member %s: rebuild the gadget's image", tune.OtelFlag, name)
				}
			}
			var err error
			if f.whole, err = raw.AddSubField(fieldmap.WholeStack, api.Kind_Uint64,
				datasource.WithFlags(datasource.FieldFlagHidden), datasource.WithAnnotations(map[string]string{"json.skip": "true"})); err != nil {
				return nil, fmt.Errorf("adding a field to the data source %q: %w", ds.Name(), err)
			}
			i.fields = append(i.fields, f)
		}
	}
	gadgetCtx.SetVar(stacksVar, i)
	// The resolver receives only the context.
	o.otel.runs.Store(gadgetCtx.Context(), i)
	context.AfterFunc(gadgetCtx.Context(), func() { o.otel.runs.Delete(gadgetCtx.Context()) })
	return i, nil
}

// otelField is a field that contains a stack.
type otelField struct {
	ds            datasource.DataSource
	id, seen, pid datasource.FieldAccessor
	whole         datasource.FieldAccessor // ID of the row's whole stack; 0: none
}

// otelInstance is the operator's state for one run.
type otelInstance struct {
	op     *operator
	log    logger.Logger
	chains []string
	fields []otelField
	rows   rows

	sub    *unwinder.Subscription
	before unwindTotals
	joined atomic.Uint64
	stop   chan struct{} // nil before Start and after Close
	done   chan struct{}
}

// Name implements operators.DataOperatorInstance.
func (*otelInstance) Name() string { return OtelName }

// PreStart starts the unwinder. If that fails, the run fails, because the user requested these stacks with the flag.
func (i *otelInstance) PreStart(gadgetCtx operators.GadgetContext) error {
	if err := i.prepare(gadgetCtx); err != nil {
		leave(&i.sub)
		if gadgetCtx.Context().Err() != nil {
			return nil // the run ended during the wait, which is not a failure
		}
		return fmt.Errorf("--%s: %w", tune.OtelFlag, err)
	}
	return nil
}

func (i *otelInstance) prepare(gadgetCtx operators.GadgetContext) error {
	ids, err := i.op.broker.OtelIDs()
	if err != nil {
		return err
	}
	settings := unwinder.Settings{Chains: "otel_" + strings.Join(i.chains, ",otel_"), Languages: "all"}
	if i.sub, err = i.op.broker.Subscribe(gadgetCtx.Context(), settings); err != nil {
		return err
	}
	for _, f := range i.fields {
		if err := f.ds.Subscribe(func(_ datasource.DataSource, d datasource.Data) error { i.join(f, d); return nil }, textPriority); err != nil {
			return err
		}
	}
	if flags := tune.CollectStacks(gadgetCtx, false, true); len(flags) > 0 {
		i.log.Infof("%s: the gadget collects stacks for --%s, as if you had set %s", OtelName, tune.OtelFlag, strings.Join(flags, " and "))
	}
	gadgetCtx.SetVar(symbolizer.OtelGenericParamsMapName, ids)
	return nil
}

// Start makes the gadget's programs, which are already loaded, call the unwinder. If that fails, the run continues with
// frame-pointer stacks.
func (i *otelInstance) Start(gadgetCtx operators.GadgetContext) error {
	if i.sub == nil {
		return nil
	}
	i.rows.names = i.op.acquireNames(gadgetCtx)
	i.before = i.op.otel.report(i.op.broker)
	i.stop, i.done = make(chan struct{}), make(chan struct{})
	go i.read()
	for _, chain := range i.chains {
		array := tune.Map(gadgetCtx, "otel_tc_"+chain)
		kinds, _ := wire.ParseChains("otel_" + chain)
		if array == nil || len(kinds) != 1 {
			continue
		}
		if err := i.sub.Serve(kinds[0], array); err != nil {
			i.log.Warnf("%s: stacks use frame pointers: %v", OtelName, err)
		}
	}
	return nil
}

// read receives stacks until stop is closed.
func (i *otelInstance) read() {
	defer close(i.done)
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case b := <-i.sub.C:
			for _, u := range b {
				// Open the files immediately, because the process can exit.
				i.rows.want(u.Stack, u.Proc)
			}
			i.op.otel.add(b)
		case <-tick.C:
			i.op.otel.report(i.op.broker)
			i.op.report.report(i.op.broker.Totals())
		case <-i.stop:
			return
		}
	}
}

// join waits for a row's stack, and writes the stack's ID into the row.
func (i *otelInstance) join(f otelField, d datasource.Data) {
	id, err := f.id.Uint64(d)
	if err != nil || id == 0 {
		return
	}
	pid, _ := f.pid.Uint32(d)
	seen, _ := f.seen.Uint64(d)
	if s := i.op.otel.await(id, pid, seen, patienceLeft(seen)); s != nil {
		i.joined.Add(1)
		_ = f.whole.PutUint64(d, s.ID)
	}
}

// patienceLeft returns how much longer a row can wait. seen is the time of the row's event since boot.
func patienceLeft(seen uint64) time.Duration {
	return min(otelPatience, otelPatience-time.Duration(procfs.SinceBoot()-seen))
}

// Frames implements fieldmap.Stacks.
func (i *otelInstance) Frames(dst []profile.Frame, id uint64, form fieldmap.FileForm) (frames []profile.Frame, outcome stack.Outcome, unnamed fieldmap.Unnamed) {
	if id == 0 {
		return dst, stack.Empty, nil
	}
	return i.rows.framesOf(dst, i.op.otel.stack(id), form)
}

// Stop implements operators.DataOperatorInstance. The last rows come after Stop.
func (*otelInstance) Stop(operators.GadgetContext) error { return nil }

// Close releases the run's resources.
func (i *otelInstance) Close(gadgetCtx operators.GadgetContext) error {
	i.op.otel.runs.Delete(gadgetCtx.Context())
	if i.stop != nil {
		close(i.stop)
		<-i.done
		i.stop = nil
		i.op.names.Release((*names.Namer).Close)
		total := i.op.otel.report(i.op.broker).since(i.before)
		i.log.Infof("%s: %d rows have whole stacks; totals of all gadgets with --%s: %s", OtelName, i.joined.Load(), tune.OtelFlag, total.summary("events"))
	}
	leave(&i.sub)
	return nil
}
