//go:build e2e

package polyglot

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestFalseJVM runs programs that the unwinder takes for Java and whose tables are unreadable. One makes the unwinder take a
// tebibyte of memory, which ends it at once. The other makes it read for days. Both are detected and left out.
func TestFalseJVM(t *testing.T) {
	program := filepath.Join(folder(t), "libjvm.so")
	igtest.Output(t, "gcc", "-O1", "-Wall", "-Werror", "-rdynamic", "-o", program, filepath.Join("testdata", "jvm.c"))
	h := startHostile(t)
	said := func(text string, within time.Duration) {
		t.Helper()
		require.True(t, h.run.wait(text, within, func() bool { return strings.Contains(h.run.log.String(), text) }), "the log does not say: %s", text)
	}
	h.start(program, "huge")
	said("out of memory", 4*time.Minute)
	said("so samples of this process are skipped", 4*time.Minute)
	h.start(program, "endless")
	said("of CPU time: the files may be malicious", 15*time.Minute) // half a minute of it, on a shared machine
	_, b := h.finish()
	require.EqualValues(t, 3, b.Restarts)
}
