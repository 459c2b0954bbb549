//go:build e2e

package profile

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

// step is a step of a GitHub Actions workflow.
type step struct {
	Name, Uses, If, Run string
	With, Env           map[string]string
}

// workflow returns the steps of the guide's workflow.
func workflow(t *testing.T) []step {
	t.Helper()
	page, err := os.ReadFile("../../docs/guides/check.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "```yaml\nname: Profile check\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "```")
	var w struct {
		On   string
		Jobs map[string]struct{ Steps []step }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &w))
	require.Equal(t, "pull_request", w.On)
	require.Len(t, w.Jobs, 1)
	return w.Jobs["profile-check"].Steps
}

// TestWorkflow runs the shell commands of the guide's workflow as GitHub's runner does: each step with "bash -e", and after a
// failure only the steps with a condition. The checkouts are folders with a program whose function price has become slower.
// Runs are shorter, sudo only runs a command, make only checks its targets, and gh records its arguments.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	dir, tools := t.TempDir(), t.TempDir()
	write := func(file, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o755))
	}
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	makeTool, err := exec.LookPath("make")
	require.NoError(t, err)
	write(filepath.Join(tools, "sudo"), "#!/bin/sh\nexec env \"$@\"\n")
	write(filepath.Join(tools, "make"), fmt.Sprintf("#!/bin/sh\n[ \"$1 $2\" = \"-C profiler\" ] || exit 1\nshift 2\nexec %s -C %s -n \"$@\"\n", makeTool, top))
	write(filepath.Join(tools, "gh"), "#!/bin/sh\necho \"$@\" >gh.txt\n")
	source, err := os.ReadFile("testdata/check/main.go")
	require.NoError(t, err)

	var paths []string
	failed := ""
	for _, s := range workflow(t) {
		if strings.HasPrefix(s.Uses, "actions/checkout@") {
			path := s.With["path"]
			paths = append(paths, path)
			if path == "profiler" {
				require.NoError(t, os.Mkdir(filepath.Join(dir, path), 0o755))
				require.NoError(t, os.Symlink(filepath.Dir(os.Getenv("E2E_BIN")), filepath.Join(dir, path, "build")))
				continue
			}
			slower := map[string]string{"base": "0", "new": "300"}[path]
			changed := strings.Replace(string(source), "strconv.Atoi(os.Args[1])", `strconv.Atoi(append(os.Args, "`+slower+`")[1])`, 1)
			require.NotEqual(t, string(source), changed)
			write(filepath.Join(dir, path, "cmd/shop/main.go"), changed)
			write(filepath.Join(dir, path, "go.mod"), "module example.com/shop\n\ngo 1.22\n")
			write(filepath.Join(dir, path, "load.sh"), "#!/bin/sh\nexec sleep 600\n")
		}
		if s.Run == "" || failed != "" && !strings.Contains(s.If, "!cancelled()") {
			continue
		}
		script := filepath.Join(tools, "script.sh")
		write(script, strings.Replace(s.Run, "--seconds 60", "--seconds 5", 1))
		argv := append(igrun.Prefix(), "bash", "-e", script)
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "GITHUB_STEP_SUMMARY="+filepath.Join(dir, "summary.md"), "GITHUB_REPOSITORY=example/shop", "CGO_ENABLED=0")
		for name := range s.Env {
			cmd.Env = append(cmd.Env, name+"=7")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = time.Minute
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		require.NoError(t, cmd.Start())
		group := cmd.Process.Pid
		t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) }) // if it has left programs
		err := cmd.Wait()
		t.Logf("%s: %v\n%s", s.Name, err, said.String())
		if s.Name == "Check" {
			require.Error(t, err)
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), "a regression")
			failed = s.Name
			continue
		}
		require.NoError(t, err, s.Name)
	}
	require.Equal(t, "Check", failed)
	require.ElementsMatch(t, []string{"base", "new", "profiler"}, paths)
	result, err := os.ReadFile(filepath.Join(dir, "check.md"))
	require.NoError(t, err)
	require.Contains(t, string(result), "### Profile check: 1 regression\n\n- `main.price: own share ")
	require.Contains(t, string(result), "3 runs, ")
	summary, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	require.NoError(t, err)
	require.Equal(t, string(result), string(summary))
	comment, err := os.ReadFile(filepath.Join(dir, "gh.txt"))
	require.NoError(t, err)
	require.Equal(t, "pr comment 7 --repo example/shop --body-file check.md\n", string(comment))
}
