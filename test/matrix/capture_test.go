//go:build e2e

package matrix

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// start compiles and runs a program of test/gadgets.
func start(t *testing.T, name string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-o", program, filepath.Join("..", "gadgets", "testdata", name+".c"))
	run(t, program)
}

// run runs a program until the test ends.
func run(t *testing.T, program string) {
	t.Helper()
	cmd := exec.Command(program)
	// The scheduler first divides CPU time between sessions. With its own session, the program gets enough CPU time to be
	// sampled on a busy machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close()) // this ends the program
		require.NoError(t, cmd.Wait())
	})
}

// A gadget must send enoughRequests. It then continues, up to a limit, until the data to check has arrived. On a busy machine,
// ig takes long to start, and the program is rarely sampled.
const (
	enoughRequests = 3
	limit          = 4 * time.Minute
)

// capture runs a gadget with an exporter per preset until each exporter has sent enough. It returns each exporter's encoded
// requests.
func capture(t *testing.T, image string, presets, flags []string, enough func(preset string, bodies [][]byte) bool) (map[string][][]byte, error) {
	t.Helper()
	dir := t.TempDir()
	file := func(preset string) string { return filepath.Join(dir, preset+".pb") }
	args := append([]string{"run", image}, igrun.GadgetFlags()...)
	args = append(args, "--timeout", fmt.Sprint(limit.Seconds()), "--otel-profiles-exporter="+strings.Join(presets, ","), "--otel-profiles-interval=1s", "--output=none")
	args = append(args, flags...)
	cmd := igrun.Command(t.Context(), igtest.Built(t, igtest.Bin, "ig"), args...)
	cmd.Env = os.Environ()
	for _, preset := range presets {
		prefix := config.EnvPrefix + strings.ToUpper(preset) + "_"
		cmd.Env = append(cmd.Env, prefix+"EXPORTER=file", prefix+"PATH="+file(preset), prefix+"FORMAT=otlp-proto", prefix+"PRESET="+preset)
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	sent, lacking := map[string][][]byte{}, slices.Clone(presets)
	for poll := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case err := <-ended:
			poll.Stop()
			if err != nil {
				return nil, fmt.Errorf("%w: %s", err, log.Bytes())
			}
			for _, preset := range presets {
				bodies, whole, err := read(file(preset))
				if err == nil && !whole {
					err = errors.New("the last request is incomplete")
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", preset, err)
				}
				sent[preset] = bodies
			}
			return sent, nil
		case <-poll.C:
		}
		lacking = slices.DeleteFunc(lacking, func(preset string) bool {
			bodies, _, err := read(file(preset))
			return err == nil && len(bodies) >= enoughRequests && enough(preset, bodies)
		})
		if len(lacking) > 0 {
			continue
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return nil, err
		}
		poll.Stop()
	}
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
