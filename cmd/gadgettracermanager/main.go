// gadgettracermanager is Inspektor Gadget's daemon for Kubernetes with this project's operator otel-profiles.
//
// The manifests of "kubectl gadget deploy" and of Inspektor Gadget's Helm chart start and probe it, so it has the flags that they
// use.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	kubemanagertypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/kubemanager/types"
	log "github.com/sirupsen/logrus"
)

// drainTimeout limits how long the exporters deliver their queues when the daemon stops. Kubernetes kills the pod after 30 s by
// default, and the preStop hook takes some of that.
const drainTimeout = 25 * time.Second

// errUsage is returned after the usage was printed.
var errUsage = errors.New("use either -serve or -liveness, without arguments")

type options struct {
	serve          bool
	liveness       bool
	livenessSocket string
	serviceHost    string
}

func main() {
	err := run(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		log.Fatal(err)
	}
}

// run runs a probe, or the daemon until SIGINT or SIGTERM.
func run(args []string) error {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	if opts.liveness {
		return probe(context.Background(), opts.livenessSocket)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// After the first signal, restore the default handler. A second signal then ends the process at once.
	defer context.AfterFunc(ctx, stop)()
	defer stop()
	return serve(ctx, opts.serviceHost)
}

func parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("gadgettracermanager", flag.ContinueOnError)
	flags.BoolVar(&opts.serve, "serve", false, "run the daemon")
	flags.BoolVar(&opts.liveness, "liveness", false, "check a running daemon, and exit with status 0 if it is healthy")
	flags.StringVar(&opts.livenessSocket, "liveness-socketfile", kubemanagertypes.DefaultHookAndLivenessSocketFile,
		"`path` of the socket that -liveness checks")
	flags.StringVar(&opts.serviceHost, "service-host", fmt.Sprintf("tcp://127.0.0.1:%d", api.GadgetServicePort),
		"`address` that -serve listens on for clients")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 || opts.serve == opts.liveness {
		flags.Usage()
		return options{}, errUsage
	}
	return opts, nil
}
