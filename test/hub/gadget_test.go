//go:build e2e

package hub

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource/compat"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// row is a profiler's row about a process, with the fields that Inspektor Gadget enriches it with.
type row struct {
	fields map[string]string
	leaf   string
	value  uint64
}

// pod returns the fields of a container in a pod of a Deployment.
func pod(namespace, deployment, labels string) map[string]string {
	return map[string]string{
		"k8s.node": "node-1", "k8s.namespace": namespace, "k8s.podName": deployment + "-7d4b9c-x2x4z", "k8s.containerName": "main",
		"k8s.owner.kind": "Deployment", "k8s.owner.name": deployment, "k8s.podLabels": labels,
		"runtime.containerName": "k8s_main_" + deployment, "runtime.runtimeName": "containerd",
		"runtime.containerImageName": "registry.example/" + deployment + ":1.4.2",
		"runtime.containerId":        fmt.Sprintf("%064x", len(namespace+deployment)),
	}
}

// rows are of two workloads, of the cluster's own pods, and of a process of the node.
func rows() []row {
	cart := pod("shop", "cart", "app=cart,team=checkout")
	return []row{
		{cart, "main.hash", 30}, {cart, "main.sort", 12},
		{pod("shop", "search", "app=search"), "main.find", 20},
		{pod("kube-system", "coredns", "k8s-app=kube-dns"), "dns.serve", 7},
		{nil, "kubelet.sync", 5},
	}
}

// send makes our operator read the rows from a gadget without eBPF, and export them.
func send(t *testing.T, exporter string, rows []row) {
	t.Helper()
	gadgettest.Config(t, exporter)
	op := otelprofiles.New()
	require.NoError(t, op.Init(nil))
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, op.Shutdown(ctx))
	}()

	var ds datasource.DataSource
	var gc *gadgetcontext.GadgetContext
	profiler := simple.New("profiler", simple.WithPriority(1),
		simple.OnInit(func(gc operators.GadgetContext) (err error) {
			ds, err = source(gc)
			return err
		}),
		simple.OnStart(func(operators.GadgetContext) error {
			if err := emit(ds, rows); err != nil {
				return err
			}
			gc.Cancel()
			return nil
		}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gc = gadgetcontext.New(ctx, gadgettest.Image, gadgetcontext.WithDataOperators(profiler, op))
	require.NoError(t, gc.Run(gadgettest.Params("collector")))
}

// source registers a data source like profile_cpu's, with the fields that Inspektor Gadget adds to rows with a mount namespace.
func source(gc operators.GadgetContext) (datasource.DataSource, error) {
	ds, err := gc.RegisterDataSource(datasource.TypeArray, "samples")
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{
		"profiles.stack-fields": "kern_stack,user_stack", "profiles.value-field": "samples", "profiles.name": "process_cpu",
		"profiles.period": "20408163", "profiles.period-type": "cpu", "profiles.period-unit": "nanoseconds",
	} {
		ds.AddAnnotation(k, v)
	}
	if _, err := ds.AddField("mntns_id", api.Kind_Uint64, datasource.WithTags("type:"+ebpftypes.MntNsTypeName)); err != nil {
		return nil, err
	}
	if _, err := compat.WrapAccessors(ds, nil, nil); err != nil {
		return nil, err
	}
	for _, name := range []string{"kern_stack", "user_stack"} {
		if _, err := ds.AddField(name, api.Kind_String); err != nil {
			return nil, err
		}
	}
	proc, err := ds.AddField("proc", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty))
	if err != nil {
		return nil, err
	}
	if _, err := proc.AddSubField("comm", api.Kind_String); err != nil {
		return nil, err
	}
	_, err = ds.AddField("samples", api.Kind_Uint64)
	return ds, err
}

func emit(ds datasource.DataSource, rows []row) error {
	p, err := ds.NewPacketArray()
	if err != nil {
		return err
	}
	for _, r := range rows {
		d := p.New()
		fields := map[string]string{"kern_stack": "do_syscall_64; entry; ", "user_stack": r.leaf + "; main.main; ", "proc.comm": "worker"}
		for name, text := range r.fields {
			fields[name] = text
		}
		for name, text := range fields {
			acc := ds.GetField(name)
			if acc == nil {
				return fmt.Errorf("the data source has no field %s", name)
			}
			if err := acc.PutString(d, text); err != nil {
				return fmt.Errorf("setting %s: %w", name, err)
			}
		}
		if err := ds.GetField("samples").PutUint64(d, r.value); err != nil {
			return err
		}
		p.Append(d)
	}
	return ds.EmitAndRelease(p)
}
