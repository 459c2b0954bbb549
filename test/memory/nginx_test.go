//go:build e2e

package memory

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// nginxConf configures one worker that builds and compresses a page for each request. It uses no file outside its prefix.
const nginxConf = `user root;
worker_processes 1;
daemon off;
pid nginx.pid;
error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	default_type text/html;
	gzip on;
	gzip_http_version 1.0;
	gzip_comp_level 1;
	server {
		listen %s;
		root .;
		ssi on;
	}
}
`

// nginxRequests is the number of requests in each repetition.
const nginxRequests = 100

// nginx starts a server on the loopback interface, and ab requests its pages. The number of allocations per page was measured
// with profile_alloc.
func nginx(t *testing.T) work {
	t.Helper()
	dir := t.TempDir()
	// The gadget selects processes by this name, which no other nginx has.
	program := filepath.Join(dir, "nginx-measured")
	require.NoError(t, os.Symlink("/usr/sbin/nginx", program))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, nginxConf, address), 0o600))
	var part strings.Builder
	for i := range 100 {
		fmt.Fprintf(&part, "<p>The square of %d is %d.</p>\n", i, i*i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "part.html"), []byte(part.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.html"), []byte(strings.Repeat(`<h1>Parts</h1><!--#include virtual="/part.html" -->`+"\n", 8)), 0o600))
	return work{
		name: "nginx with compressed pages of several files", calls: 4180, warm: 150, long: 1000, short: 50,
		command: []string{program, "-p", dir, "-c", "nginx.conf"},
		choose:  []string{"--comm=nginx-measured"},
		// it does not follow a fork without execve
		without: []string{"heaptrack 1.4"},
		serve: func(t *testing.T, server *exec.Cmd, n int) spent {
			t.Helper()
			if n == 0 {
				return spent{}
			}
			workers := children(t, server.Process.Pid)
			began, used := time.Now(), time.Duration(0)
			for _, pid := range workers {
				used -= igtest.CPUTime(t, pid)
			}
			requests := strconv.Itoa(n * nginxRequests)
			out := igtest.Output(t, "ab", "-q", "-c", "4", "-n", requests, "-H", "Accept-Encoding: gzip", "http://"+address+"/page.html")
			require.Regexp(t, regexp.MustCompile(`Complete requests: +`+requests+`\nFailed requests: +0\n`), out)
			for _, pid := range workers {
				used += igtest.CPUTime(t, pid)
			}
			return spent{time.Since(began), used}
		},
	}
}

// children waits until a server has child processes, and returns their PIDs.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	for range 100 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		require.NoError(t, err)
		for _, f := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(f)
			require.NoError(t, err)
			pids = append(pids, n)
		}
		if len(pids) > 0 {
			return pids
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.Fail(t, "the server has not started")
	return nil
}
