package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"

	"github.com/inspektor-gadget/inspektor-gadget/gadget-container/entrypoint"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/config/gadgettracermanagerconfig"
	gadgetservice "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	k8sconfigmapstore "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/store/k8s-configmap-store"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ocihandler "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/oci-handler"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime/local"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/utils/host"
	log "github.com/sirupsen/logrus"

	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/allocator"
	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/captures"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
)

// serve runs the daemon until ctx ends or the service fails. Then it stops the gadgets that export, waits at most drainTimeout
// for the delivery of their last profiles, and closes the clients' connections.
func serve(ctx context.Context, address string) error {
	if err := gadgettracermanagerconfig.Init(); err != nil {
		return fmt.Errorf("reading the daemon's config: %w", err)
	}
	cfg := config.Config
	level, err := log.ParseLevel(cfg.GetString(gadgettracermanagerconfig.DaemonLogLevel))
	if err != nil {
		return fmt.Errorf("config key %s: %w", gadgettracermanagerconfig.DaemonLogLevel, err)
	}
	log.SetLevel(level)
	logVersions()

	operators.RegisterDataOperator(ocihandler.OciHandler)
	if err := otelprofiles.Registered(); err != nil {
		return err
	}
	if err := prepareHost(); err != nil {
		return err
	}
	service, err := newService()
	if err != nil {
		return err
	}
	socketType, socketPath, err := api.ParseSocketAddress(address)
	if err != nil {
		return fmt.Errorf("flag -service-host: %w", err)
	}

	failure := otelprofiles.Serve(ctx, drainTimeout, func() error {
		return service.Run(gadgetservice.RunConfig{SocketType: socketType, SocketPath: socketPath})
	})
	service.Close()
	if failure != nil {
		return fmt.Errorf("running the gadget service on %s: %w", address, failure)
	}
	return nil
}

// prepareHost finds and prepares the host's file systems and namespaces, as Inspektor Gadget's container does at its start.
func prepareHost() error {
	if err := host.Init(host.Config{AutoMountFilesystems: true}); err != nil {
		return fmt.Errorf("preparing access to the host: %w", err)
	}
	for _, ns := range []struct {
		name   string
		isHost func() (bool, error)
	}{
		{"pid", host.IsHostPidNs},
		{"network", host.IsHostNetNs},
		{"cgroup", host.IsHostCgroupNs},
	} {
		shared, err := ns.isHost()
		if err != nil {
			return fmt.Errorf("checking whether the %s namespace is the host's: %w", ns.name, err)
		}
		log.Infof("uses the %s namespace of the host: %t", ns.name, shared)
	}
	if err := entrypoint.Init(); err != nil {
		return fmt.Errorf("preparing the container: %w", err)
	}
	return nil
}

// newService creates the gRPC service, with the headless gadgets in the ConfigMaps of the daemon's namespace.
func newService() (*gadgetservice.Service, error) {
	cfg := config.Config
	value := cfg.GetString(gadgettracermanagerconfig.EventsBufferLengthKey)
	length, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("config key %s: %w", gadgettracermanagerconfig.EventsBufferLengthKey, err)
	}
	namespace := cfg.GetString(gadgettracermanagerconfig.GadgetNamespace)
	if namespace == "" {
		return nil, fmt.Errorf("config key %s is empty: set it to the daemon's namespace", gadgettracermanagerconfig.GadgetNamespace)
	}
	log.Infof("running in the namespace %q, and buffering up to %d events per client", namespace, length)

	service := gadgetservice.NewService(log.StandardLogger())
	service.SetEventBufferLength(length)
	manager, err := otelprofiles.NewInstanceManager(local.New())
	if err != nil {
		return nil, fmt.Errorf("creating the instance manager: %w", err)
	}
	store, err := k8sconfigmapstore.New(manager, namespace)
	if err != nil {
		return nil, fmt.Errorf("creating the gadget instance store: %w", err)
	}
	service.SetStore(otelprofiles.NewStore(store, manager))
	service.SetInstanceManager(manager)
	return service, nil
}

// version is set at link time.
var version = "devel"

// logVersions logs the versions of this program and of Inspektor Gadget.
func logVersions() {
	ig := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/inspektor-gadget/inspektor-gadget" {
				ig = dep.Version
			}
		}
	}
	log.Infof("ig-otel-profiles %s with Inspektor Gadget %s", version, ig)
}
