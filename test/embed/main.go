// embed is an example of a program that uses Inspektor Gadget and this project's exporter. It runs one gadget for some seconds and
// sends its profiles to an OpenTelemetry Collector.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	// Its init function tells Inspektor Gadget that this is a single host. This import must come first.
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/environment/local"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	apihelpers "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api-helpers"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/localmanager"
	ocihandler "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/oci-handler"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/process"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ustack"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime/local"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/utils/host"

	// This import registers the operator.
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("embed", flag.ExitOnError)
	image := flags.String("gadget", "profile_cpu:dev", "`image` to run")
	endpoint := flags.String("endpoint", "http://localhost:4317", "`URL` of an OTLP receiver")
	seconds := flags.Int("seconds", 10, "how long to run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := host.Init(host.Config{AutoMountFilesystems: true}); err != nil {
		return fmt.Errorf("preparing the host: %w", err)
	}

	// A dependency that imports Inspektor Gadget's own otel-profiles would replace this operator.
	if err := otelprofiles.Registered(); err != nil {
		return err
	}
	operators.RegisterDataOperator(ocihandler.OciHandler)

	// These are settings for which ig has flags, by operator name.
	settings := map[string]string{
		// The image was built here and has no signature.
		"operator.oci.verify-image":                     "false",
		"operator.otel-profiles.otel-profiles-exporter": "otlp",
		"operator.otel-profiles.otel-profiles-endpoint": *endpoint,
	}

	// These are all registered operators, including this project's, each initialized once.
	var used []operators.DataOperator
	for name, op := range operators.GetDataOperators() {
		if name == localmanager.OperatorName {
			// This operator tracks containers, but this example profiles the whole host.
			continue
		}
		global := apihelpers.ToParamDescs(op.GlobalParams()).ToParams()
		if err := global.CopyFromMap(settings, "operator."+name+"."); err != nil {
			return fmt.Errorf("setting the operator %s: %w", name, err)
		}
		if err := op.Init(global); err != nil {
			return fmt.Errorf("initializing the operator %s: %w", name, err)
		}
		used = append(used, op)
	}

	runtime := local.New()
	if err := runtime.Init(nil); err != nil {
		return fmt.Errorf("initializing the runtime: %w", err)
	}
	defer runtime.Close()

	gadget := gadgetcontext.New(ctx, *image,
		gadgetcontext.WithDataOperators(used...),
		gadgetcontext.WithTimeout(time.Duration(*seconds)*time.Second))
	err := runtime.RunGadget(gadget, nil, settings)
	if err != nil {
		return fmt.Errorf("running %s: %w", *image, err)
	}

	// The last profiles are possibly still under way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return otelprofiles.Shutdown(ctx)
}
