// ig is Inspektor Gadget's command for a single host with this project's operator otel-profiles. It has the same commands and
// flags as Inspektor Gadget's ig.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/cmd/common"
	"github.com/inspektor-gadget/inspektor-gadget/cmd/common/image"
	"github.com/inspektor-gadget/inspektor-gadget/cmd/common/utils"
	"github.com/inspektor-gadget/inspektor-gadget/cmd/ig/containers"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ocihandler "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/oci-handler"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime/local"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/utils/experimental"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/utils/host"
	log "github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/allocator"
	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/captures"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
	_ "github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	profilesconfig "github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// errReported represents errors that were already printed.
var errReported = errors.New("already reported")

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
	}
	os.Exit(1)
}

func run(args []string) error {
	if err := hostFlags(args, igrun.HostNamespaces); err != nil {
		return err
	}
	if experimental.Enabled() {
		log.Info("experimental features are enabled")
	}

	root := &cobra.Command{
		Use:   "ig",
		Short: "Run Inspektor Gadget on a single host and export profiles over OTLP",
	}
	common.AddConfigFlag(root)
	common.AddVerboseFlag(root)
	host.AddFlags(root)
	pprofAddr := root.PersistentFlags().String("pprof-addr", "",
		"`address` on which to serve Go profiles of ig itself, such as localhost:6060 (default: none)")
	root.AddCommand(containers.NewListContainersCmd(), newVersionCommand())

	// The next steps depend on these flags, and add more. So flags are parsed twice. The config file can set only the root
	// command's flags, so they are copied here.
	if err := utils.ParseEarlyFlags(root, args); err != nil {
		return err
	}
	rootFlags := utils.CopyFlagSet(root.PersistentFlags())
	if err := common.InitConfig(rootFlags); err != nil {
		return fmt.Errorf("reading the config: %w", err)
	}

	runtime := local.New()
	if err := common.SetFlagsForParams(root, runtime.GlobalParamDescs().ToParams(), config.RuntimeKey); err != nil {
		return fmt.Errorf("reading the runtime's settings from the config: %w", err)
	}
	operators.RegisterDataOperator(ocihandler.OciHandler)
	if err := otelprofiles.Registered(); err != nil {
		return err
	}

	// Hide the columns of Kubernetes.
	hiddenColumnTags := []string{"kubernetes"}
	configCommand := common.NewConfigCmd(runtime, rootFlags)
	// "ig config view" prints all settings, which can contain an exporter's secrets.
	configCommand.PersistentPreRun = func(*cobra.Command, []string) {
		profilesconfig.HideSecrets(config.Config)
	}
	root.AddCommand(
		newDaemonCommand(runtime),
		common.NewLoginCmd(),
		common.NewLogoutCmd(),
		image.NewImageCmd(runtime, nil),
		common.NewRunCommand(root, runtime, hiddenColumnTags, common.CommandModeRun),
		configCommand,
	)

	if *pprofAddr != "" {
		serveOwnProfiles(*pprofAddr)
	}
	if root.Execute() != nil {
		return errReported
	}
	return otelprofiles.Failed()
}

// hostFlags returns why the flags of "ig run" for the host and for containers do not work here, if args have any. Inspektor
// Gadget would call them unknown.
func hostFlags(args []string, why func() error) error {
	if !slices.Contains(args, "run") {
		return nil
	}
	for _, arg := range args {
		if name, _, _ := strings.Cut(arg, "="); name == "--host" || name == "--containername" || name == "--runtimes" {
			if err := why(); err != nil {
				return fmt.Errorf("flag %s: %w", name, err)
			}
		}
	}
	return nil
}

// serveOwnProfiles serves net/http/pprof until the process ends. If it cannot listen, it only logs the error.
func serveOwnProfiles(address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		log.Errorf("serving pprof on --pprof-addr %s: %v", address, server.ListenAndServe())
	}()
}
