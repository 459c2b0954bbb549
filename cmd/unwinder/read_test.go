package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// confinedEnv makes the test's executable try the forbidden calls of tryConfined.
const confinedEnv = "UNWINDER_TEST_CONFINED"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(confinedEnv) != "":
		tryConfined()
	case slices.Contains(os.Args, "-read"):
		if err := readFiles(256 << 20); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// filtered returns nil if the filter has not refused a call.
func filtered(err error) error {
	if errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// tryConfined prints the forbidden calls that succeed, and waits for the end of standard input.
func tryConfined() {
	if err := confine(128 << 20); err != nil {
		fmt.Println("confine:", err)
	}
	for name, try := range map[string]func() error{
		"open":    func() error { _, err := os.Open("/etc/hostname"); return err },
		"write":   func() error { return os.WriteFile("/tmp/unwinder-confined", nil, 0o600) },
		"connect": func() error { _, err := net.Dial("udp", "127.0.0.1:53"); return err },
		"exec":    func() error { return exec.Command("/bin/true").Run() },
		"kill":    func() error { return (&os.Process{Pid: os.Getppid()}).Signal(os.Interrupt) },
		// Without the filter, the errors would be ESRCH and none.
		"tgkill": func() error { return filtered(unix.Tgkill(1<<22-1, 1<<22-1, 0)) },
		"fcntl":  func() error { _, err := unix.FcntlInt(0, unix.F_SETOWN, os.Getppid()); return filtered(err) },
		"lock":   func() error { return filtered(unix.FcntlFlock(0, unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})) },
		"setsig": func() error { _, err := unix.FcntlInt(0, unix.F_SETSIG, int(unix.SIGKILL)); return filtered(err) },
	} {
		if try() == nil {
			fmt.Println(name, "works")
		}
	}
	fmt.Println("tried")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// A process that reads files has no rights: it can open no files, start no programs and make no connections.
func TestConfined(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), confinedEnv+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	said := make([]byte, 1024)
	n, _ := out.Read(said)
	assert.Equal(t, "tried\n", string(said[:n]))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	require.NoError(t, err)
	for _, want := range []string{`CapPrm:\s0+\n`, `CapEff:\s0+\n`, `NoNewPrivs:\s1\n`, `Seccomp:\s2\n`} {
		assert.Regexp(t, want, string(status))
	}
	if os.Getuid() == 0 {
		assert.Regexp(t, `Uid:\s65534\s65534\s65534\s65534\nGid:\s65534`, string(status), "it is not nobody")
	}
	_ = in.Close()
	_ = cmd.Wait()
}

type testLog struct{ t *testing.T }

func (l testLog) Warnf(format string, args ...any) { l.t.Errorf(format, args...) }

func (l testLog) Debugf(format string, args ...any) { l.t.Logf(format, args...) }

// ownProgram makes this test's executable the unwinder that package unwinder starts, and returns its path.
func ownProgram(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	if err := os.Symlink(exe, filepath.Join(filepath.Dir(exe), unwinder.Program)); !os.IsExist(err) {
		require.NoError(t, err)
	}
	return exe
}

// Without rights, it can still read files: a large Go program, a system program with its debug link, and a perf map.
func TestReadConfined(t *testing.T) {
	exe := ownProgram(t)
	perf := filepath.Join(t.TempDir(), "perf.map")
	require.NoError(t, os.WriteFile(perf, []byte("1000 10 function\n"), 0o600))
	s := symbols.NewStore(symbols.Options{Reader: unwinder.NewReader(testLog{t}, nil), Lines: true})
	defer s.Close()
	for _, path := range []string{exe, "/bin/sh", perf} {
		f, err := os.Open(path)
		require.NoError(t, err)
		id, err := symtab.Identify(f)
		f.Close()
		require.NoError(t, err)
		if path == perf {
			id = symtab.FileID{Dev: id.Dev, Inode: id.Inode, Process: 1}
		}
		s.Request(symbols.Request{ID: id, Path: path, Open: func() (*os.File, error) { return os.Open(path) }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s.Wait(ctx, id)
		cancel()
		assert.NoError(t, s.LastError(), path)
		if path == perf {
			symbol, state := s.Lookup(id, 0x1008)
			assert.Equal(t, symtab.Named, state)
			assert.Equal(t, "function", symbol.Name)
		}
	}
}

// TestUnitAllowsFilter checks that the package's services allow the system call of the filter. systemd's set @system-service does
// not contain it, and without the filter there are no names.
func TestUnitAllowsFilter(t *testing.T) {
	unit, err := os.ReadFile("../ig/package/sandbox")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^SystemCallFilter=[^~].* seccomp\b`, string(unit))
}
