package otelprofiles_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime/local"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/metrictest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// aDaemon replaces Inspektor Gadget's service, which the manager uses.
type aDaemon []operators.DataOperator

func (d aDaemon) GetOperatorMap() map[operators.DataOperator]*params.Params {
	m := map[operators.DataOperator]*params.Params{}
	for _, op := range d {
		m[op] = nil
	}
	return m
}

const runID = "68ab84f7c6d0f5781585eb1b5289499f"

func detached(id string, values api.ParamValues) *api.GadgetInstance {
	return &api.GadgetInstance{Id: id, Name: "cpu", GadgetConfig: &api.GadgetRunRequest{ImageName: gadgettest.Image, Version: api.VersionGadgetRunProtocol, ParamValues: values}}
}

// The metric must count each failed detached run until it is deleted or starts again.
func TestFailedRunsAreCounted(t *testing.T) {
	op := settings(t, exporter("mine", startReceiver(t).Addr(), ""))
	for _, tc := range []struct {
		exporter, why string
		start         func(operators.GadgetContext) error
	}{
		{"mnie", "the known exporters are mine", nil},
		{"mine", "no such kernel function", func(operators.GadgetContext) error { return errors.New("no such kernel function") }},
		{"mine", "allocator: the probes cost too much", func(gadgetCtx operators.GadgetContext) error {
			tune.End(gadgetCtx, "allocator", errors.New("the probes cost too much"))
			return nil
		}},
	} {
		t.Run(tc.why, func(t *testing.T) {
			sums := metrictest.Sums(t)
			manager, err := otelprofiles.NewInstanceManager(local.New())
			require.NoError(t, err)
			fails := simple.New("fails", simple.WithPriority(2), simple.OnStart(func(gadgetCtx operators.GadgetContext) error { return tc.start(gadgetCtx) }))
			manager.Service = aDaemon(append((&gadgettest.Gadget{}).Make(t.Context(), op).DataOperators(), fails))
			is := func(why string, failed float64) {
				t.Helper()
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					if state, err := manager.InstanceState(runID); why != "" && assert.NoError(c, err) {
						assert.Equal(c, api.GadgetInstanceStatus_StatusError, state.Status)
						assert.Contains(c, state.Message, why)
					}
					assert.Equal(c, map[string]float64{"profile_cpu": failed}, sums("ig_otel_profiles_gadgets_failed", "gadget"))
				}, 10*time.Second, 10*time.Millisecond)
			}
			manager.RunGadget(detached(runID, gadgettest.Params(tc.exporter)))
			is(tc.why, 1)
			require.NoError(t, manager.RemoveGadget(runID))
			is("", 0)
			manager.RunGadget(detached(runID, gadgettest.Params(tc.exporter)))
			is(tc.why, 1)
			require.NoError(t, manager.RemoveGadget(runID))
			is("", 0)
		})
	}
}

// stored is a store of detached runs. Inspektor Gadget's stores need a cluster, or write to a folder of the host.
type stored struct {
	api.UnimplementedGadgetInstanceManagerServer
	runs []*api.GadgetInstance
}

func (s *stored) ResumeStoredGadgets() error { return nil }

func (s *stored) CreateGadgetInstance(_ context.Context, r *api.CreateGadgetInstanceRequest) (*api.CreateGadgetInstanceResponse, error) {
	s.runs = append(s.runs, r.GadgetInstance)
	return &api.CreateGadgetInstanceResponse{GadgetInstance: r.GadgetInstance}, nil
}

func (s *stored) ListGadgetInstances(context.Context, *api.ListGadgetInstancesRequest) (*api.ListGadgetInstanceResponse, error) {
	return &api.ListGadgetInstanceResponse{GadgetInstances: slices.Clone(s.runs)}, nil
}

// The client must see a mistake in the exporter's name or settings, and in the interval. The list must contain this node's runs.
func TestDetachedRunsAreChecked(t *testing.T) {
	op := settings(t, exporter("mine", "127.0.0.1:1", "      broken: {exporter: carrier-pigeon}\n"))
	manager, err := otelprofiles.NewInstanceManager(local.New())
	require.NoError(t, err)
	manager.Service = aDaemon(nil)
	runs := &stored{}
	store := op.NewStore(runs, manager)
	create := func(values api.ParamValues) error {
		_, err := store.CreateGadgetInstance(t.Context(), &api.CreateGadgetInstanceRequest{GadgetInstance: detached(runID, values)})
		return err
	}
	require.ErrorContains(t, create(gadgettest.Params("mnie")), `unknown exporter "mnie": the known exporters are broken, mine`)
	require.ErrorContains(t, create(gadgettest.Params("mine,samples:broken")), "carrier-pigeon")
	require.ErrorContains(t, create(gadgettest.Params("a:b:c")), otelprofiles.ParamExporter)
	require.ErrorContains(t, create(gadgettest.Params("mine", otelprofiles.ParamInterval, "5")), `got "5", expected a duration`)
	require.ErrorContains(t, create(gadgettest.Params("mine", otelprofiles.ParamInterval, "500ms")), "a daemon requires at least 1s")
	require.Empty(t, runs.runs)
	require.NoError(t, create(nil))
	require.NoError(t, create(gadgettest.Params("mine", otelprofiles.ParamInterval, "5s")))
	require.NoError(t, create(gadgettest.Params("samples:mine")))
	require.Len(t, runs.runs, 3)

	manager.RunGadget(detached(runID, nil))
	defer func() { require.NoError(t, manager.RemoveGadget(runID)) }()
	runs.runs = append(runs.runs, detached("feed", nil)) // of another node
	list, err := store.ListGadgetInstances(t.Context(), &api.ListGadgetInstancesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GadgetInstances, 3)
	require.Equal(t, runID, list.GadgetInstances[0].Id)
}
