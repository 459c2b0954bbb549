package hostproc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUnit(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/system.slice/nginx.service":                                                                    "nginx",
		"/system.slice/system-postgresql.slice/postgresql@15-main.service":                               "postgresql@15-main",
		"/system.slice/docker.service/child":                                                             "docker",
		`/system.slice/system-foo.slice/foo@bar\x2dbaz.service`:                                          "foo@bar-baz",
		`/system.slice/a\x5cx2db\x.service`:                                                              `a\x2db\x`, // decoded once
		`/system.slice/\x5cb\x2dc\xzz\x7E.service`:                                                       `\b-c\xzz~`,
		"/system.slice/app-ffffffffff0.service":                                                          "app-ffffffffff0",
		"/system.slice/app-fffffffffff0.service":                                                         "",
		"/user.slice/user-1000.slice/session-12.scope":                                                   "",
		"/user.slice/user-1000.slice/user@1000.service/init.scope":                                       "user@1000/init",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-code-4711.scope":                    "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/pipewire.service":                       "user@1000/pipewire",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service":                          "user@1000/nginx",
		"/user.slice/user-1000.slice/user@1000.service/user@0.service/nginx.service":                     "",
		"/user.slice/user-1000.slice/user@1000.service/a.service/nginx.service":                          "user@1000/a",
		"/system.slice/ci.service/nginx.service":                                                         "ci",
		"/system.slice/nginx.service (deleted)":                                                          "nginx",
		"/system.slice/run-u31.service/nginx.service":                                                    "",
		"/user.slice/user-1000.slice/session-12.scope/nginx.service":                                     "",
		"/machine.slice/libpod-" + strings.Repeat("ab12", 16) + ".scope/container/nginx.service":         "",
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

// process makes a folder as in /proc.
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
	require.Zero(t, r.Lookup(Process{PID: 99}))
	require.Zero(t, r.Lookup(Process{}))

	// A process that has exited must keep its service.
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
	process(t, root, 1000, "/usr/bin/step0", "0::/system.slice/ci.service\n")
	require.Equal(t, "/usr/bin/step0", r.Lookup(Process{PID: 1000}).Path, "a known executable of a unit with many")
}

// When a PID belongs to another process, Lookup returns that one's service after a while.
func TestPIDUsedAgain(t *testing.T) {
	root := t.TempDir()
	process(t, root, 10, "/usr/sbin/nginx", "0::/system.slice/nginx.service\n")
	r := New(root)
	require.Equal(t, "nginx", r.Lookup(Process{PID: 10}).Name)
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc", "10")))
	process(t, root, 10, "/usr/bin/redis", "0::/system.slice/redis.service\n")
	for range keep - 1 {
		r.Age()
		require.Equal(t, "nginx", r.Lookup(Process{PID: 10}).Name, "it is not read each time")
	}
	r.Age()
	require.Equal(t, "redis", r.Lookup(Process{PID: 10}).Name)
}

// TestRealProcess looks up a running program.
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

// A process that can choose its own mounts cannot pass for a service of the host: its path is not trusted. The path is trusted if
// a privileged process made the mounts and the root is the host's.
func TestOwnMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to become another user")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	r := New("")
	r.groups = newGroups("") // so that this test's own unit does not count
	for name, c := range map[string]struct {
		script string // ends in sleep
		uid    uint32
		want   Service
	}{
		"the user's own namespaces": {
			"exec unshare -Urm sh -c 'mount -t tmpfs none /usr/sbin && cp " + sleep + " /usr/sbin/victim && exec /usr/sbin/victim 60'",
			65534, Service{Name: "victim (user namespace)"},
		},
		"a user namespace": {"exec unshare -U " + sleep + " 60", 65534, Service{Name: "sleep (user namespace)"}},
		"another root": {
			"cd " + dir + " && exec unshare -m sh -c 'mount -t tmpfs none . && mkdir -p usr/bin lib lib64 usr/lib && mount --rbind /lib lib && " +
				"mount --rbind /usr/lib usr/lib; [ ! -e /lib64 ] || mount --rbind /lib64 lib64; cp " + sleep + " usr/bin/victim && exec chroot . /usr/bin/victim 60'",
			0, Service{Name: "victim (mount namespace)"},
		},
		"mounts by root": {"exec unshare -m " + sleep + " 60", 0, Service{"sleep", "sleep", sleep}},
		"no mounts":      {"exec " + sleep + " 60", 65534, Service{"sleep", "sleep", sleep}},
		"a file in memory": {"exec python3 -c 'import os; f = os.memfd_create(\"/usr/sbin/victim\"); os.write(f, open(\"" + sleep + "\", \"rb\").read()); os.execv(\"/proc/self/fd/%d\" % f, [\"x\", \"60\"])'",
			65534, Service{"memfd:/usr/sbin/victim", "memfd:/usr/sbin/victim", "/memfd:/usr/sbin/victim"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			require.NoError(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			pid := uint32(cmd.Process.Pid)
			// The programs that start it have their own names.
			var got Service
			for end := time.Now().Add(20 * time.Second); got != c.want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				got = r.read(Process{PID: pid}, 0)
			}
			require.Equal(t, c.want, got, out.String())
		})
	}
}
