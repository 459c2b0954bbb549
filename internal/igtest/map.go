package igtest

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

// Map makes an eBPF map and closes it at the end of the test. It skips the test if the kernel has no maps of this type, or refuses
// all maps because the test does not run as root.
func Map(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(spec)
	if errors.Is(err, ebpf.ErrNotSupported) || os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
		t.Skipf("no map of type %s here: %s", spec.Type, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}
