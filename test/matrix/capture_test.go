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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// start compiles a program of test/gadgets and runs it.
func start(t *testing.T, name string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-o", program, filepath.Join("..", "gadgets", "testdata", name+".c"))
	run(t, program)
}

// run runs a program until the end of the test.
func run(t *testing.T, program string) {
	t.Helper()
	cmd := exec.Command(program)
	// The scheduler shares CPUs between sessions first: one of its own has the
	// program run, and be sampled, where much else runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close()) // the program ends with it
		require.NoError(t, cmd.Wait())
	})
}

// A gadget sends for enoughTime, and longer, up to a limit, until what is to be checked has come. On a busy machine ig
// takes long to start, and the program is rarely sampled.
const (
	enoughTime = 4 * time.Second
	ownLimit   = 90 * time.Second
	// Some gadgets of others give nothing here.
	othersLimit = 15 * time.Second
)

// capture runs a gadget under a preset until it has sent enough, and returns the requests as they were encoded.
func capture(t *testing.T, image, preset string, flags []string, limit time.Duration, enough func([][]byte) bool) ([][]byte, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "requests.pb")
	args := append([]string{"run", image}, igrun.GadgetFlags()...)
	args = append(args, "--timeout", fmt.Sprint(limit.Seconds()), "--otel-profiles-exporter=matrix", "--otel-profiles-interval=1s", "--output=none")
	args = append(args, flags...)
	cmd := igrun.Command(t.Context(), filepath.Join(os.Getenv("E2E_BIN"), "ig"), args...)
	prefix := config.EnvPrefix + "MATRIX_"
	cmd.Env = append(os.Environ(), prefix+"EXPORTER=file", prefix+"PATH="+file, prefix+"FORMAT=otlp-proto", prefix+"PRESET="+preset)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var first time.Time // when requests were there
	for poll := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case err := <-ended:
			poll.Stop()
			if err != nil {
				return nil, fmt.Errorf("%w: %s", err, log.Bytes())
			}
			bodies, whole, err := read(file)
			if err == nil && !whole {
				err = errors.New("the last request is cut off")
			}
			return bodies, err
		case <-poll.C:
		}
		bodies, _, err := read(file)
		switch {
		case err != nil || len(bodies) == 0:
		case first.IsZero():
			first = time.Now()
		case time.Since(first) >= enoughTime && enough(bodies):
			if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return nil, err
			}
			poll.Stop()
		}
	}
}

// read reads the requests that a file has so far, and tells whether the last one is all there.
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
