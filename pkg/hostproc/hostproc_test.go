package hostproc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnit(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/system.slice/nginx.service":                                                                    "nginx",
		"/system.slice/system-postgresql.slice/postgresql@15-main.service":                               "postgresql@15-main",
		"/system.slice/docker.service/child":                                                             "docker",
		`/system.slice/system-foo.slice/foo@bar\x2dbaz.service`:                                          "foo@bar-baz",
		"/user.slice/user-1000.slice/session-12.scope":                                                   "",
		"/user.slice/user-1000.slice/user@1000.service/init.scope":                                       "init",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-code-4711.scope":                    "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/pipewire.service":                       "pipewire",
		"/user.slice/user-1000.slice/user@1000.service":                                                  "",
		"/system.slice/run-u31.service":                                                                  "",
		"/system.slice/run-r0123456789abcdef0123456789abcdef.service":                                    "",
		"/system.slice/docker-" + strings.Repeat("ab12", 16) + ".scope":                                  "",
		"/kubepods.slice/kubepods-burstable.slice/cri-containerd-" + strings.Repeat("0f", 32) + ".scope": "",
		"/init.scope": "init",
		"/":           "", "": "", "/../../x.service/../..": "x",
	} {
		require.Equal(t, want, Unit(cgroup), cgroup)
	}
}

// process makes a folder such as /proc has.
func process(t *testing.T, root string, pid int, exe, cgroup string) {
	t.Helper()
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Symlink(exe, filepath.Join(dir, "exe")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o600))
}

func TestLookup(t *testing.T) {
	root := t.TempDir()
	process(t, root, 10, "/usr/sbin/nginx", "0::/system.slice/nginx.service\n")
	process(t, root, 11, "/usr/bin/cc1 (deleted)", "0::/user.slice/user-0.slice/session-3.scope\n")
	process(t, root, 12, "/usr/bin/old", "12:cpu:/x\n1:name=systemd:/system.slice/old.service\n0::/\n")
	process(t, root, 13, "/tmp/"+strings.Repeat("x", 500)+"\x1b[31m\xff", "")
	r := New(root)
	require.Equal(t, Service{"nginx", "nginx", "/usr/sbin/nginx"}, r.Lookup(Process{PID: 10}))
	require.Equal(t, Service{"cc1", "cc1", "/usr/bin/cc1"}, r.Lookup(Process{PID: 11}))
	require.Equal(t, Service{"old", "old", "/usr/bin/old"}, r.Lookup(Process{PID: 12}))
	hostile := r.Lookup(Process{PID: 13})
	require.LessOrEqual(t, len(hostile.Name), maxName)
	require.NotContains(t, hostile.Path, "\x1b")
	require.Zero(t, r.Lookup(Process{PID: 99}))
	require.Zero(t, r.Lookup(Process{}))

	// What is known of a process stays when it is gone.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc", "10")))
	require.Equal(t, "nginx", r.Lookup(Process{PID: 10}).Name)
	require.Zero(t, testing.AllocsPerRun(10, func() { r.Lookup(Process{PID: 10}) }))
	require.Zero(t, r.Lookup(Process{PID: 10, Inode: 7}), "another process")

	for i := range 2 * maxExecutables {
		process(t, root, 100+i, fmt.Sprintf("/usr/bin/step%d", i), "0::/system.slice/ci.service\n")
		s := r.Lookup(Process{PID: uint32(100 + i)})
		require.Equal(t, "ci", s.Name)
		require.Equal(t, i < maxExecutables, s.Path != "", i)
	}
}

// TestRealProcess looks at a program that runs.
func TestRealProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}()
	s := New("").Lookup(Process{PID: uint32(cmd.Process.Pid)})
	require.NotEmpty(t, s.Name)
	require.Contains(t, s.Path, "/")
}
