//go:build e2e

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "google.golang.org/grpc/encoding/gzip" // ig sends gzip

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

// elsewhere holds a test for each page with blocks that need another machine or the internet. Each test creates a replacement, and
// runs the block unchanged.
var elsewhere = map[string]func(*testing.T, block){
	"README.md":                      clonesFromGitHub,
	"docs/reference/command-line.md": sendsToAnotherMachine,
}

func TestElsewhere(t *testing.T) {
	ran := map[string]bool{}
	for _, b := range pages(t) {
		if b.mark != "elsewhere" {
			continue
		}
		run := elsewhere[b.page]
		require.NotNil(t, run, "%s: no test runs this block", b)
		require.False(t, ran[b.page], "%s: one block a page", b)
		ran[b.page] = true
		t.Run(b.String(), func(t *testing.T) { run(t, b) })
	}
	require.Len(t, ran, len(elsewhere))
}

// clonesFromGitHub clones this repository instead of GitHub's, and lists make's targets in the clone.
func clonesFromGitHub(t *testing.T, b block) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", b.text+"\nmake help\n")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=url.file://"+top+".insteadOf", "GIT_CONFIG_VALUE_1=https://github.com/ig-otel-profiles/ig-otel-profiles")
	output, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", b.text, tail(string(output)))
	require.NoError(t, err)
	for _, target := range []string{"make demo", "make test", "make profile"} {
		require.Contains(t, string(output), target)
	}
}

// sendsToAnotherMachine gives this machine the host name from the page in /etc/hosts, and a certificate that the system trusts.
func sendsToAnotherMachine(t *testing.T, b block) {
	const machine, port = "collector.example.com", "4317"
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	env := prepareIn(t, top, func(*testing.T, string, string) {})
	ca := recvtest.NewCA(t)
	server := ca.Issue(t, machine, time.Now().Add(time.Hour)).ServerTLS(t)
	server.ClientAuth = 0
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Addr: "127.0.0.1:" + port, TLS: server})
	dir := t.TempDir()
	hosts, trusted := filepath.Join(dir, "hosts"), filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(hosts, []byte("127.0.0.1 localhost "+machine+"\n"), 0o644))
	require.NoError(t, os.WriteFile(trusted, ca.PEM, 0o600))
	env.vars = append(env.vars, "SSL_CERT_FILE="+trusted)
	commands := 0
	for command := range strings.Lines(b.text) {
		require.Contains(t, command, "https://"+machine+":"+port)
		before := len(r.Requests())
		env.run(t, b, "mount --bind "+hosts+" /etc/hosts\n"+command)
		require.Greater(t, len(r.Requests()), before, "nothing arrived from: %s", command)
		commands++
	}
	require.Positive(t, commands)
}
