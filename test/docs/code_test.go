package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// joint matches the place where Go code joins the parts of a long string.
var joint = regexp.MustCompile(`" \+\n\t*"`)

// sources returns the Go code and the gadgets' metadata of this repository, without tests.
func sources(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "*.go", "*.yaml", "*.sh", "Makefile")
	list.Dir = top
	names, err := list.Output()
	require.NoError(t, err)
	var all strings.Builder
	for name := range strings.FieldsSeq(string(names)) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, name))
		require.NoError(t, err)
		all.Write(text)
	}
	return strings.ReplaceAll(joint.ReplaceAllString(all.String(), ""), `\"`, `"`)
}

// TestLogLines finds in the code every log line that the page on troubleshooting explains. In the page, … replaces parts that vary.
func TestLogLines(t *testing.T) {
	page, code := texts(t)["docs/operate/troubleshooting.md"], sources(t)
	_, section, ok := strings.Cut(page, "\n## Log lines\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	lines := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?`) \\| (.*?) \\|").FindAllStringSubmatch(section, -1) {
		if strings.HasPrefix(row[2], "Inspektor Gadget") {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			lines++
			for part := range strings.SplitSeq(m[1], "…") {
				if part = strings.Trim(part, " :,"); !strings.Contains(code, part) {
					t.Errorf("no code logs %q of %q", part, m[1])
				}
			}
		}
	}
	require.Greater(t, lines, 30)
}

// TestMistakeTexts finds in the code every text of the log that the page on annotations lists with a mistake.
func TestMistakeTexts(t *testing.T) {
	page, code := texts(t)["docs/reference/annotations.md"], sources(t)
	_, section, ok := strings.Cut(page, "\n## Mistakes\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	found := 0
	for _, row := range regexp.MustCompile(`(?m)^\| .* \| .* \| (.*) ?\|$`).FindAllStringSubmatch(section, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			found++
			for part := range strings.SplitSeq(m[1], "…") {
				if !strings.Contains(code, strings.Trim(part, " :,")) {
					t.Errorf("no code logs %q of %q", part, m[1])
				}
			}
		}
	}
	require.Greater(t, found, 20)
}

// TestMetricNames finds in the reference every metric that a page names. A test of pkg/config checks the reference against the
// code.
func TestMetricNames(t *testing.T) {
	pages := texts(t)
	known := map[string]bool{}
	metric := regexp.MustCompile(`ig_otel_profiles_[a-z_]*[a-z]`)
	for _, m := range regexp.MustCompile("(?m)^\\| `(ig_otel_profiles_\\w+)` \\| (\\w+)").FindAllStringSubmatch(pages["docs/reference/metrics.md"], -1) {
		for _, unit := range []string{"", "_" + m[2]} {
			for _, suffix := range []string{"", "_total", "_bucket"} {
				known[m[1]+unit+suffix] = true
			}
		}
	}
	require.NotEmpty(t, known)
	for page, text := range pages {
		for _, name := range metric.FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s: %s is no metric of the reference", page, name)
			}
		}
	}
}

// TestSettingNames looks up in the reference every setting that a page names with its group.
func TestSettingNames(t *testing.T) {
	pages := texts(t)
	reference := pages["docs/reference/settings.md"]
	var groups []string
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\|").FindAllStringSubmatch(reference, -1) {
		known[m[1]] = true
		if group, _, ok := strings.Cut(m[1], "."); ok {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	require.Contains(t, groups, "sending_queue")
	named := regexp.MustCompile("`((?:" + strings.Join(groups, "|") + `)\.[a-z0-9_.]+)`)
	found := 0
	for page, text := range pages {
		if page == "docs/reference/settings.md" {
			continue // The page also names settings of the Collector that this project does not have.
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			found++
			if !known[m[1]] && !strings.HasPrefix(m[1], "keepalive.server_parameters.") {
				t.Errorf("%s: %s is no setting of the reference", page, m[1])
			}
		}
	}
	require.Greater(t, found, 50)
}

// foreign are flags of programs other than ours and Inspektor Gadget's.
var foreign = []string{
	"feature-gates", "config", "post-renderer", "tlog-upload", "offline", "perf-basic-prof", "store-address", "insecure", "no-extract", "allow-downgrades",
	"remote-store-format", "force-confold", "off-cpu-threshold", "set", "version", "help", "now", "collect-kstack",
	"allow-unsigned-rpm", "oldpackage",
}

// TestFlags finds in the code every flag that the users' pages name.
func TestFlags(t *testing.T) {
	code := sources(t)
	module := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/inspektor-gadget/inspektor-gadget")
	module.Dir = top
	dir, err := module.Output()
	require.NoError(t, err)
	var theirs strings.Builder
	for _, folder := range []string{"cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(strings.TrimSpace(string(dir)), folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			theirs.Write(text)
			return err
		}))
	}
	named := regexp.MustCompile("`[^`\n]*`")
	flag := regexp.MustCompile(`(?:^|[\s` + "`" + `])--([a-z][a-z0-9-]*[a-z0-9])`)
	found := map[string]bool{}
	for page, text := range texts(t) {
		if !strings.HasPrefix(page, "docs/") || strings.HasPrefix(page, "docs/develop/") {
			continue
		}
		for _, quoted := range named.FindAllString(fenced.ReplaceAllString(text, ""), -1) {
			for _, m := range flag.FindAllStringSubmatch(quoted, -1) {
				found[m[1]] = true
				known := regexp.MustCompile(`["{ ]` + m[1] + `[",} \n]`)
				if !slices.Contains(foreign, m[1]) && !known.MatchString(code) && !strings.Contains(theirs.String(), `"`+m[1]+`"`) {
					t.Errorf("%s: no program has the flag --%s", page, m[1])
				}
			}
		}
	}
	require.Greater(t, len(found), 20)
}
