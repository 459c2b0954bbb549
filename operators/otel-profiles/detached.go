package otelprofiles

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	instancemanager "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/instance-manager"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/store"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// These are the keys of parameters in a request.
const (
	exporterKey = "operator." + Name + "." + ParamExporter
	intervalKey = "operator." + Name + "." + ParamInterval
)

// failedInterval is the time between two checks of whether a failed run still exists.
var failedInterval = 10 * time.Second // shorter in tests

// NewInstanceManager returns Inspektor Gadget's manager for a daemon's detached runs. A detached run has no client that would
// notice a failure. So a metric counts failed runs that use this operator, until they are deleted or start again.
func NewInstanceManager(r runtime.Runtime) (*instancemanager.Manager, error) {
	d := &detachedRuntime{Runtime: r}
	var err error
	d.manager, err = instancemanager.New(d)
	return d.manager, err
}

type detachedRuntime struct {
	runtime.Runtime
	manager *instancemanager.Manager
}

// RunGadget implements runtime.Runtime. It returns an error if an operator has ended the run. Otherwise Inspektor Gadget would
// list the run as running.
func (d *detachedRuntime) RunGadget(gadgetCtx runtime.GadgetContext, runtimeParams *params.Params, values api.ParamValues) error {
	id := gadgetCtx.ID()
	run := d.manager.LookupInstance(id)
	err := d.Runtime.RunGadget(gadgetCtx, runtimeParams, values)
	if ctx, ok := gadgetCtx.(operators.GadgetContext); ok && err == nil {
		err = tune.Ended(ctx)
	}
	there := func() bool { return d.manager.LookupInstance(id) == run }
	if err != nil && values[exporterKey] != "" && there() {
		label := theGadgetNames.of(gadgetCtx.ImageName())
		change(theInstruments().failed, 1, label)
		go func() {
			for there() {
				time.Sleep(failedInterval)
			}
			change(theInstruments().failed, -1, label)
		}()
	}
	return err
}

// NewStore returns a daemon's store for detached runs. The store refuses to create a run whose exporter does not exist or is
// misconfigured, or whose interval is invalid. So the client sees the error. The store does not list runs of other nodes, because
// Inspektor Gadget's list request would fail for them.
func NewStore(s store.Store, manager *instancemanager.Manager) store.Store {
	return registered.NewStore(s, manager)
}

// NewStore does the same as the function NewStore, but for this Operator.
func (o *Operator) NewStore(s store.Store, manager *instancemanager.Manager) store.Store {
	return detachedStore{s, manager, o}
}

type detachedStore struct {
	store.Store
	manager *instancemanager.Manager
	op      *Operator
}

// CreateGadgetInstance implements store.Store.
func (s detachedStore) CreateGadgetInstance(ctx context.Context, r *api.CreateGadgetInstanceRequest) (*api.CreateGadgetInstanceResponse, error) {
	values := r.GetGadgetInstance().GetGadgetConfig().GetParamValues()
	to, err := parseTargets(values[exporterKey])
	if err != nil {
		return nil, err
	}
	if _, err := parseInterval(values[intervalKey], true); err != nil {
		return nil, err
	}
	set := s.op.load(nil, true)
	for _, name := range to.names() {
		if _, err := set.Exporter(name); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
	}
	return s.Store.CreateGadgetInstance(ctx, r)
}

// ListGadgetInstances implements store.Store.
func (s detachedStore) ListGadgetInstances(ctx context.Context, r *api.ListGadgetInstancesRequest) (*api.ListGadgetInstanceResponse, error) {
	list, err := s.Store.ListGadgetInstances(ctx, r)
	if err != nil {
		return nil, err
	}
	list.GadgetInstances = slices.DeleteFunc(list.GadgetInstances, func(run *api.GadgetInstance) bool { return s.manager.LookupInstance(run.Id) == nil })
	return list, nil
}
