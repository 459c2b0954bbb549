//go:build e2e

package matrix

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// start compiles and runs a program of test/gadgets.
func start(t *testing.T, name string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-o", program, filepath.Join("..", "gadgets", "testdata", name+".c"))
	igtest.StartProgram(t, exec.Command(program))
}

// A gadget must send enoughRequests. It then continues until the data to check has arrived. On a busy machine, ig takes long to
// start, and the program is rarely sampled.
const enoughRequests = 3

// capture runs a gadget with an exporter per preset until each exporter has sent enough. It returns each exporter's encoded
// requests.
func capture(t *testing.T, image string, presets, flags []string, enough func(preset string, bodies [][]byte) bool) map[string][][]byte {
	t.Helper()
	dir := t.TempDir()
	file := func(preset string) string { return filepath.Join(dir, preset+".pb") }
	cmd := igtest.Command(t, image, append([]string{"--otel-profiles-exporter=" + strings.Join(presets, ","), "--otel-profiles-interval=1s", "--output=none"}, flags...)...)
	cmd.Env = os.Environ()
	for _, preset := range presets {
		prefix := config.EnvPrefix + strings.ToUpper(preset) + "_"
		cmd.Env = append(cmd.Env, prefix+"EXPORTER=file", prefix+"PATH="+file(preset), prefix+"FORMAT=otlp-proto", prefix+"PRESET="+preset)
	}
	ig := igtest.StartCommand(t, cmd)
	ig.Wait("enough data of each preset", func() bool {
		return !slices.ContainsFunc(presets, func(preset string) bool {
			bodies, _, err := read(file(preset))
			return err != nil || len(bodies) < enoughRequests || !enough(preset, bodies)
		})
	})
	ig.Stop()
	sent := map[string][][]byte{}
	for _, preset := range presets {
		bodies, whole, err := read(file(preset))
		require.NoError(t, err, preset)
		require.True(t, whole, "the last request of %s is incomplete", preset)
		sent[preset] = bodies
	}
	return sent
}

// read returns the requests that a file contains so far, and reports whether the last request is complete.
func read(file string) (bodies [][]byte, whole bool, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, true, nil // no rows
	}
	if err != nil {
		return nil, false, err
	}
	for len(content) >= 4 {
		n := int(binary.BigEndian.Uint32(content))
		if len(content)-4 < n {
			break
		}
		bodies, content = append(bodies, content[4:4+n]), content[4+n:]
	}
	return bodies, len(content) == 0, nil
}
