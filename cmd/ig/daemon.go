package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/cmd/common"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	gadgetservice "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	filestore "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/store/file-store"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime"
	gadgettls "github.com/inspektor-gadget/inspektor-gadget/pkg/utils/tls"
	log "github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

// drainTimeout limits how long the exporters deliver their queues when the daemon stops. systemd kills it after 90 s.
const drainTimeout = 30 * time.Second

var errNotRoot = errors.New("the daemon loads eBPF programs: run the daemon as root")

// daemonFlags has Inspektor Gadget's flags of "ig daemon".
type daemonFlags struct {
	socket       string
	group        string
	bufferLength uint64
	keyFile      string
	certFile     string
	clientCAFile string
	insecure     bool
}

func newDaemonCommand(runtime runtime.Runtime) *cobra.Command {
	var flags daemonFlags
	cmd := &cobra.Command{
		Use:          "daemon",
		Short:        "Run Inspektor Gadget as a daemon",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
	}
	set := cmd.PersistentFlags()
	set.StringVarP(&flags.group, "group", "G", "0", "`group` (name or number) that may use the unix socket")
	set.StringVarP(&flags.socket, "host", "H", api.DefaultDaemonPath,
		"`address` to listen on: unix:///path/to/socket or tcp://127.0.0.1:1234")
	set.Uint64Var(&flags.bufferLength, "events-buffer-length", 16384,
		"number of events to buffer for each slow client; further events are lost")
	set.StringVar(&flags.keyFile, "tls-key-file", "", "`file` with the private key for TLS")
	set.StringVar(&flags.certFile, "tls-cert-file", "", "`file` with the certificate for TLS")
	set.StringVar(&flags.clientCAFile, "tls-client-ca-file", "", "`file` with the CA certificates for verifying clients")
	set.BoolVar(&flags.insecure, "tls-insecure", false, "listen on TCP without TLS; everyone who can reach the address can connect")

	service := gadgetservice.NewService(log.StandardLogger())
	for _, params := range service.GetOperatorMap() {
		common.AddFlags(cmd, params, nil, runtime)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			return errNotRoot
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		// After the first signal, restore the default handler. A second signal then ends the process at once.
		defer context.AfterFunc(ctx, stop)()
		defer stop()
		return flags.serve(ctx, service, runtime)
	}
	return cmd
}

// serve runs the daemon until ctx ends or the service fails. Then it stops the gadgets that export, waits at most drainTimeout
// for the delivery of their last profiles, and closes the clients' connections.
func (f *daemonFlags) serve(ctx context.Context, service *gadgetservice.Service, runtime runtime.Runtime) error {
	socketType, socketPath, err := api.ParseSocketAddress(f.socket)
	if err != nil {
		return fmt.Errorf("flag --host: %w", err)
	}
	gid, err := groupID(f.group)
	if err != nil {
		return fmt.Errorf("flag --group: %w", err)
	}
	options, err := f.serverOptions(socketType)
	if err != nil {
		return err
	}
	if err := config.Config.ReadInConfig(); err != nil {
		log.Warnf("continuing without a config: %v", err)
	}

	manager, err := otelprofiles.NewInstanceManager(runtime)
	if err != nil {
		return fmt.Errorf("creating the instance manager: %w", err)
	}
	store, err := filestore.New(manager)
	if err != nil {
		return fmt.Errorf("creating the gadget instance store: %w", err)
	}
	service.SetEventBufferLength(f.bufferLength)
	service.SetInstanceManager(manager)
	service.SetStore(otelprofiles.NewStore(store, manager))

	log.Infof("serving gadgets on %s", f.socket)
	failure := otelprofiles.Serve(ctx, drainTimeout, func() error {
		return service.Run(gadgetservice.RunConfig{
			SocketType: socketType,
			SocketPath: socketPath,
			SocketGID:  gid,
		}, options...)
	})
	service.Close()
	if failure != nil {
		return fmt.Errorf("serving gadgets on %s: %w", f.socket, failure)
	}
	return nil
}

// serverOptions returns the options for authenticating clients. The owner and mode of a Unix socket control its use. TCP requires
// TLS or tls-insecure.
func (f *daemonFlags) serverOptions(socketType string) ([]grpc.ServerOption, error) {
	switch {
	case f.keyFile == "" && f.certFile == "" && f.clientCAFile == "":
		if socketType != "unix" {
			if !f.insecure {
				return nil, fmt.Errorf("no TLS for %s: set --tls-key-file, --tls-cert-file and --tls-client-ca-file, or --tls-insecure", f.socket)
			}
			log.Warnf("no TLS: everyone who can reach %s can run gadgets on this host", f.socket)
		}
		return nil, nil
	case f.keyFile == "" || f.certFile == "" || f.clientCAFile == "":
		return nil, fmt.Errorf("TLS requires all of --tls-key-file (%q), --tls-cert-file (%q) and --tls-client-ca-file (%q)",
			f.keyFile, f.certFile, f.clientCAFile)
	}

	cert, err := gadgettls.LoadTLSCert(f.certFile, f.keyFile)
	if err != nil {
		return nil, fmt.Errorf("flags --tls-cert-file and --tls-key-file: %w", err)
	}
	authorities, err := gadgettls.LoadTLSCA(f.clientCAFile)
	if err != nil {
		return nil, fmt.Errorf("flag --tls-client-ca-file: %w", err)
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{cert},
		ClientCAs:    authorities,
	}))}, nil
}

// groupID returns the GID of a group given by name or number.
func groupID(group string) (int, error) {
	number := group
	if found, err := user.LookupGroup(group); err == nil {
		number = found.Gid
	}
	gid, err := strconv.Atoi(number)
	if err != nil {
		return 0, fmt.Errorf("there is no group %q on this host", group)
	}
	return gid, nil
}
