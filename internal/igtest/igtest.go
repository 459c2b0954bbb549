// Package igtest contains code that end-to-end tests share. It finds and runs the programs that make has built. Unit tests
// also use some of its functions.
package igtest

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

// These environment variables name the folders of the programs and of the gadget images.
const (
	Bin     = "E2E_BIN"
	Gadgets = "E2E_GADGETS"
)

// Built returns the path of a file that make has built, in the folder that the environment variable names. It ends the test if
// there is none.
func Built(t *testing.T, variable, name string) string {
	t.Helper()
	dir := os.Getenv(variable)
	require.NotEmpty(t, dir, "%s is not set: set it to the folder with %s, or run the test with make", variable, name)
	path := filepath.Join(dir, name)
	require.FileExists(t, path)
	return path
}

// NeedRoot skips the test if the kernel refuses eBPF programs.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading eBPF programs needs root")
	}
}

// Output runs a command to completion and returns its output without surrounding white space.
func Output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v:\n%s", name, args, out)
	return strings.TrimSpace(string(out))
}

// imported are the gadgets that this process has made available to ig.
var imported sync.Map

// Import makes a gadget of this project available to ig, once in a process, and returns its name with the tag.
func Import(t *testing.T, gadget string) string {
	t.Helper()
	name := gadget + ":" + cmp.Or(os.Getenv("GADGET_TAG"), "dev")
	if _, ok := imported.Load(gadget); !ok {
		require.NoError(t, igrun.Import(t.Context(), Built(t, Bin, "ig"), Built(t, Gadgets, gadget+".tar")))
		imported.Store(gadget, true)
	}
	return name
}

// Buffer can be read while a command writes to it.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// Bytes returns the data so far.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

// String returns the same data as text.
func (b *Buffer) String() string { return string(b.Bytes()) }

// Logger logs everything to a writer.
func Logger(to io.Writer) *logrus.Logger {
	l := logrus.New()
	l.SetOutput(to)
	l.SetLevel(logrus.DebugLevel)
	return l
}
