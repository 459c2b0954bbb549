package main

import (
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/environment"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

func TestProbe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe.sock")
	require.ErrorContains(t, run([]string{"-liveness", "-liveness-socketfile", socket}), socket)

	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server, service := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})

	require.NoError(t, run([]string{"-liveness", "-liveness-socketfile", socket}))
	service.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	require.ErrorContains(t, run([]string{"-liveness", "-liveness-socketfile", socket}), "NOT_SERVING")
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"-serve", "-liveness"}, {"-serve", "extra"}} {
		require.ErrorIs(t, run(args), errUsage, args)
	}
	require.ErrorIs(t, run([]string{"-h"}), flag.ErrHelp)
	require.ErrorContains(t, run([]string{"-unknown"}), "unknown")
}

// TestManifestCommands parses the commands that "kubectl gadget deploy" configures for kubelets.
func TestManifestCommands(t *testing.T) {
	type probeSpec struct {
		Exec struct{ Command []string }
	}
	var object struct {
		Spec struct {
			Template struct {
				Spec struct {
					TerminationGracePeriodSeconds *int `yaml:"terminationGracePeriodSeconds"`
					Containers                    []struct {
						Command        []string
						LivenessProbe  probeSpec `yaml:"livenessProbe"`
						ReadinessProbe probeSpec `yaml:"readinessProbe"`
						StartupProbe   probeSpec `yaml:"startupProbe"`
						Lifecycle      struct {
							PreStop probeSpec `yaml:"preStop"`
						}
					}
				}
			}
		}
	}
	deployed(t, "DaemonSet", &object)
	pod := object.Spec.Template.Spec
	require.Nil(t, pod.TerminationGracePeriodSeconds, "drainTimeout fits the default of 30 s")
	var commands [][]string
	for _, c := range pod.Containers {
		require.Equal(t, []string{"/cleanup"}, c.Lifecycle.PreStop.Exec.Command)
		commands = append(commands, c.Command, c.LivenessProbe.Exec.Command, c.ReadinessProbe.Exec.Command, c.StartupProbe.Exec.Command)
	}
	require.Len(t, commands, 4)
	for _, command := range commands {
		require.Equal(t, "/bin/gadgettracermanager", command[0])
		_, err := parse(command[1:])
		require.NoError(t, err, command)
	}
}

func TestOurOperatorIsRegistered(t *testing.T) {
	require.NoError(t, otelprofiles.Registered())
	require.Equal(t, environment.Kubernetes, environment.Environment)
}

// TestSameOperatorsAsInspektorGadget reads the imports of Inspektor Gadget's daemon. This daemon has all of its operators and
// symbolizers, except the symbolizer that needs a fork and the operator that this project replaces.
func TestSameOperatorsAsInspektorGadget(t *testing.T) {
	const ig = "github.com/inspektor-gadget/inspektor-gadget/"
	list := func(pkg string) []string {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .Imports "\n"}}`, pkg)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err)
		return strings.Fields(string(out))
	}
	ours := list(".")
	var theirs []string
	for _, pkg := range list(ig + "gadget-container/gadgettracermanager") {
		if strings.HasPrefix(pkg, ig+"pkg/operators/") || strings.HasPrefix(pkg, ig+"pkg/symbolizer/") {
			theirs = append(theirs, pkg)
		}
	}
	require.NotEmpty(t, theirs)
	for _, pkg := range theirs {
		switch pkg {
		case ig + "pkg/operators/otel-profiles", ig + "pkg/symbolizer/otel":
			require.NotContains(t, ours, pkg)
		default:
			require.Contains(t, ours, pkg)
		}
	}
	require.Greater(t, len(operators.GetDataOperators()), 10)
}
