//go:build e2e

package e2e

import (
	"bytes"
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
	cmd := igCommand(t.Context(), t, "daemon", "--host=unix://"+socket, "--auto-mount-filesystems", "--verify-image=false")
	cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+c.GRPC)
	log := &igtest.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", withoutNoise(log.Bytes()))
		}
	})

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

	started := func() bool { return bytes.Contains(log.Bytes(), []byte("exporting data source")) }
	require.Eventually(t, started, time.Minute, 50*time.Millisecond, "the gadget does not start")
	time.Sleep(4 * time.Second) // so that there is something to sample
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
	burner.stop(t)

	found := daemonSummary.FindSubmatch(log.Bytes())
	require.NotNil(t, found, "the operator's summary is missing")
	t.Logf("%s rows read, %s exported", found[1], found[2])
	require.NotEqual(t, "0", string(found[1]))
	require.Equal(t, string(found[1]), string(found[2]))
	c.Stop()
	// After such a short time, names can be missing.
	require.True(t, slices.ContainsFunc(samplesOf(c.Received()), func(s receiver.Sample) bool {
		return slices.ContainsFunc(s.Stack, func(f receiver.Frame) bool { return filepath.Base(f.Mapping) == "burn" })
	}), "the program is in no sample")
}
