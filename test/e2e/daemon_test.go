//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	filestore "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/store/file-store"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// instanceID is the ID of the test's instance, which "ig daemon" keeps on disk.
const instanceID = "e2e0000000000000000000000000e2e0"

// daemonSummary matches the operator's closing line for a data source if the exporter continues to run.
var daemonSummary = regexp.MustCompile(`(\d+) rows read, (\d+) exported, 0 not`)

// TestDaemonDeliversOnSIGTERM runs an instance without a client in "ig daemon". It stops the daemon before the first interval
// ends. The profiles must still arrive.
func TestDaemonDeliversOnSIGTERM(t *testing.T) {
	igtest.NeedRoot(t)
	image := igtest.Import(t, "profile_cpu")
	burner := start(t, compileC(t, "testdata/burn.c"))
	c := startCollector(t)

	file := filepath.Join(filestore.GadgetInstanceDir, instanceID+".gadget")
	removeInstance := func() {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Errorf("removing the instance: %v", err)
		}
	}
	removeInstance()
	t.Cleanup(removeInstance)

	socket := filepath.Join(t.TempDir(), "ig.socket")
	cmd := igrun.Command(t.Context(), igtest.Built(t, igtest.Bin, "ig"), "daemon", "--host=unix://"+socket, "--auto-mount-filesystems", "--verify-image=false")
	cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+c.GRPC)
	daemon := igtest.StartCommand(t, cmd)

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	create := func(exporter string) error {
		_, err := api.NewGadgetInstanceManagerClient(conn).CreateGadgetInstance(t.Context(), &api.CreateGadgetInstanceRequest{
			GadgetInstance: &api.GadgetInstance{
				Id:   instanceID,
				Name: "e2e",
				GadgetConfig: &api.GadgetRunRequest{
					ImageName: image,
					Version:   api.VersionGadgetRunProtocol,
					ParamValues: map[string]string{
						"operator.otel-profiles.otel-profiles-exporter": exporter,
						"operator.LocalManager.host":                    "true",
					},
				},
			},
		}, grpc.WaitForReady(true))
		return err
	}
	require.ErrorContains(t, create("oltp"), `unknown exporter "oltp": the known exporters are otlp`)
	require.NoError(t, create("otlp"))

	daemon.Says("exporting data source")
	before := igtest.CPUTime(t, burner.PID)
	daemon.Wait("the program's CPU time", func() bool { return igtest.CPUTime(t, burner.PID)-before > 4*time.Second })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	<-daemon.Ended
	require.NoError(t, daemon.Err)
	burner.Stop()

	found := daemonSummary.FindStringSubmatch(daemon.Log.String())
	require.NotNil(t, found, "the operator's summary is missing")
	t.Logf("%s rows read, %s exported", found[1], found[2])
	require.NotEqual(t, "0", found[1])
	require.Equal(t, found[1], found[2])
	c.Stop()
	// After such a short time, the names of functions and files can be missing.
	require.True(t, slices.ContainsFunc(receiver.ResolveAll(c.Received()), func(s receiver.Sample) bool {
		return s.Attributes["thread.name"] == "burn"
	}), "the program is in no sample")
}
