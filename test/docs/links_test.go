package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const top = "../.."

// texts returns all pages by their path from the top of the repository.
func texts(t *testing.T) map[string]string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "*.md")
	list.Dir = top
	names, err := list.Output()
	require.NoError(t, err)
	pages := map[string]string{}
	for page := range strings.FieldsSeq(string(names)) {
		text, err := os.ReadFile(filepath.Join(top, page))
		require.NoError(t, err)
		pages[page] = string(text)
	}
	require.Greater(t, len(pages), 20)
	return pages
}

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors returns the anchors that GitHub derives from a page's headings.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		found[slug] = true
	}
	return found
}

// TestLinks checks every link to a page, file or folder of the repository.
func TestLinks(t *testing.T) {
	pages := texts(t)
	followed := 0
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			followed++
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(top, target)); err != nil {
				t.Errorf("%s: %s: there is no such file", page, m[1])
				continue
			}
			if anchor != "" && !anchors(pages[target])[anchor] {
				t.Errorf("%s: %s: there is no such heading", page, m[1])
			}
		}
	}
	require.Greater(t, followed, 100)
}

// TestReachable finds the pages that links from the README do not reach.
func TestReachable(t *testing.T) {
	pages := texts(t)
	seen := map[string]bool{}
	var follow func(page string)
	follow = func(page string) {
		if seen[page] {
			return
		}
		seen[page] = true
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(pages[page], ""), -1) {
			path, _, _ := strings.Cut(m[1], "#")
			if target := filepath.Join(filepath.Dir(page), path); path != "" && pages[target] != "" {
				follow(target)
			}
		}
	}
	follow("README.md")
	for page := range pages {
		if !seen[page] {
			t.Errorf("%s: no page links to it", page)
		}
	}
}

// TestShortWays compares the cluster commands of the short pages with the guide, which test/k8s runs.
func TestShortWays(t *testing.T) {
	pages := texts(t)
	commands := regexp.MustCompile("(?s)```sh cluster\n(.*?)```")
	for _, page := range []string{"README.md", "docs/quickstart/kubernetes.md"} {
		all := ""
		for _, m := range commands.FindAllStringSubmatch(pages[page], -1) {
			all += m[1]
		}
		require.Regexp(t, `(?s)gadget deploy .*"hostPID": true.*gadget run \S*/profile_cpu:`, all, "%s: the daemon refuses this gadget without the node's PIDs", page)
		for line := range strings.Lines(all) {
			require.Contains(t, pages["docs/operate/install.md"], strings.TrimSpace(line), "%s: the guide does not have this command", page)
		}
	}
}

// TestDetached requires that --detach returns before the gadget runs. Each user page with such a run, and the man page, must say
// where to find the reason for a failure.
func TestDetached(t *testing.T) {
	pages := texts(t)
	man, err := os.ReadFile(filepath.Join(top, manPage))
	require.NoError(t, err)
	// The man page has a font in place of backticks.
	pages[manPage] = regexp.MustCompile(`(?m)^[.]B (.*)$`).ReplaceAllString(strings.ReplaceAll(string(man), `\-`, "-"), "`$1`")
	checked := 0
	for page, text := range pages {
		if regexp.MustCompile(`(?m)\b(kubectl gadget|gadgetctl) run .*--detach `).MatchString(text) && !strings.HasPrefix(page, "test/") {
			require.Regexp(t, "`(kubectl gadget |gadgetctl )?show\\b[^`]*`\\s+shows the\\s+reason", text, "%s", page)
			checked++
		}
	}
	require.Greater(t, checked, 5)
}

const manPage = "cmd/ig/package/ig-otel-profiles.8"
