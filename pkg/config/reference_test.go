package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// This command writes the tables of settings and presets in the reference:
//
//	go test ./pkg/config -run TestReference -update
//
// The tests compare the rest of the reference with the code that it describes.
const referenceFile = "../../docs/reference/settings.md"

// documentation lists the folders of pages that show settings.
var documentation = []string{"reference", "guides", "quickstart"}

// maxReferenceLines keeps the reference short enough to read.
const maxReferenceLines = 500

var update = flag.Bool("update", false, "write the generated parts of the reference")

// sections divide the table of settings. Each begins with the given key.
var sections = []struct{ title, first string }{
	{"Where and how to send", "exporter"},
	{"Credentials", "auth.bearer_token"},
	{"TLS", "insecure"},
	{"The gRPC connection", "keepalive.time"},
	{"After a failure", "retry_on_failure.enabled"},
	{"The queue", "sending_queue.queue_size"},
	{"Batches", "batch.interval"},
	{"What is sent", "preset"},
	{"Into a file", "path"},
}

func settingsTables() string {
	var b strings.Builder
	next := 0
	for _, s := range table {
		if s.quirk {
			continue
		}
		if next < len(sections) && sections[next].first == s.Key {
			fmt.Fprintf(&b, "\n### %s\n\n| setting | type | default | example | also from | what it does |\n|---|---|---|---|---|---|\n", sections[next].title)
			next++
		}
		kind, def, doc := s.Type, "", s.Doc
		if s.Values != nil {
			quoted := make([]string, len(s.Values))
			for i, v := range s.Values {
				quoted[i] = "`" + v + "`"
			}
			kind = strings.Join(quoted, ", ")
			if s.Type != "choice" {
				kind = s.Type + ", each value " + kind
			}
		}
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		if s.Secret {
			doc += " Secret."
		}
		if s.Transports != nil && len(s.Transports) < 3 && !slices.Equal(s.Transports, onNetwork) {
			doc += " Only with `exporter: " + strings.Join(s.Transports, "` or `exporter: ") + "`"
			if strings.HasPrefix(s.Key, "retention.") {
				doc += " and `format: " + FormatHistory + "`"
			}
			doc += "."
		}
		var also []string
		if s.OTel != "" {
			also = append(also, "`…_"+s.OTel+"`")
		}
		if s.Flag != "" {
			also = append(also, "`--"+s.Flag+"`")
		}
		if s.Key == "host_service_name" {
			also = append(also, "`"+serviceVariable+"`")
		}
		if s.Key == "resource" {
			also = append(also, "`"+resourceVariable+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s | %s |\n", s.Key, kind, def, s.Example, strings.Join(also, ", "), doc)
	}
	return b.String()
}

func namesTable() string {
	var b strings.Builder
	b.WriteString("\n| setting | type | default | example | what it does |\n|---|---|---|---|---|\n")
	for _, s := range nameTable {
		def := ""
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", s.Key, s.Type, def, s.Example, s.Doc)
	}
	return b.String()
}

func presetsTable() string {
	var b strings.Builder
	b.WriteString("\n| preset | sets | because | source |\n|---|---|---|---|\n| `collector` | nothing | The Collector accepts the whole protocol. | |\n")
	for _, r := range presetRules {
		fmt.Fprintf(&b, "| `%s` | `%s: %s` | %s | %s |\n", r.Preset, r.Key, r.Value, r.Why, r.Source)
	}
	return b.String()
}

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	return string(text)
}

// pages returns all pages that show settings.
func pages(t *testing.T) (all string) {
	t.Helper()
	for _, folder := range documentation {
		files, err := filepath.Glob(filepath.Join("../../docs", folder, "*.md"))
		require.NoError(t, err)
		require.NotEmpty(t, files, folder)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			all += "\n" + string(text)
		}
	}
	return all
}

func TestReferenceIsShort(t *testing.T) {
	require.LessOrEqual(t, strings.Count(reference(t), "\n"), maxReferenceLines)
}

func TestReferenceTables(t *testing.T) {
	text := reference(t)
	for _, part := range []struct{ name, content string }{
		{"settings", settingsTables()}, {"names", namesTable()}, {"presets", presetsTable()},
	} {
		begin, end := "<!-- begin "+part.name+" -->\n", "\n<!-- end "+part.name+" -->"
		before, rest, ok := strings.Cut(text, begin)
		require.True(t, ok, "the reference has no %q", begin)
		got, after, ok := strings.Cut(rest, end)
		require.True(t, ok, "the reference has no %q", end)
		if *update {
			text = before + begin + part.content + end + after
			continue
		}
		require.Equal(t, part.content, got, "run: go test ./pkg/config -run TestReference -update")
	}
	if *update {
		require.NoError(t, os.WriteFile(referenceFile, []byte(text), 0o644))
	}
}

// section returns the text below a heading of level one or two, up to the next of level two.
func section(t *testing.T, title string) string {
	t.Helper()
	text := pages(t)
	begin := regexp.MustCompile(`(?m)^##? ` + title + `\n`).FindStringIndex(text)
	require.NotNil(t, begin, "the reference has no section %q", title)
	body, _, _ := strings.Cut(text[begin[1]:], "\n## ")
	return body
}

// All configurations in the reference load, before and after a deployment.
func TestReferenceConfigurations(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(pages(t), -1)
	require.NotEmpty(t, blocks)
	used := 0
	for _, block := range blocks {
		text := block[1]
		if !strings.Contains(text, "otel-profiles:") {
			continue // this block configures a Collector or a pod
		}
		used++
		requireDeployable(t, text, text)
		require.Empty(t, notices(Load(Sources{File: readYAML(t, text), Daemon: true})), text)
	}
	require.GreaterOrEqual(t, used, 6, "one for each backend, and one for the form")
}

// All variables in the reference exist, and the variables of one block work together.
func TestReferenceVariables(t *testing.T) {
	assignment := regexp.MustCompile(`(?:` + EnvPrefix + `|OTEL_)[A-Z0-9_]+=\S+`)
	found := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(pages(t), -1) {
		environ := assignment.FindAllString(block[1], -1)
		found += len(environ)
		set := Load(Sources{File: readYAML(t, exportersYAML("prod: {endpoint: 'https://c:4317'}")), Environ: environ})
		require.Empty(t, set.Problems(), block[1])
		require.Empty(t, notices(set), block[1])
	}
	require.NotZero(t, found)
}

// sources returns the Go files in a folder of this module without tests.
func sources(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	require.NoError(t, err)
	var all bytes.Buffer
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	require.NotZero(t, all.Len(), folder)
	return all.String()
}

func matches(pattern, text string) []string {
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	out := make([]string, 0, len(found))
	for _, m := range found {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// requireSame compares names in the code with the first column of the tables in a section.
func requireSame(t *testing.T, code []string, title, pattern string) {
	t.Helper()
	require.NotEmpty(t, code)
	require.Equal(t, code, matches("(?m)^\\| `"+pattern+"`", section(t, title)))
}

// Complete configurations of earlier versions still load without any notice, before and after a deployment.
func TestConfigurationsOfBefore(t *testing.T) {
	files, err := filepath.Glob("testdata/before/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		requireDeployable(t, string(text), file)
		require.Empty(t, notices(Load(Sources{File: readYAML(t, string(text)), Daemon: true})), file)
	}
}

func TestReferenceAnnotations(t *testing.T) {
	requireSame(t, matches(`ann[A-Z]\w* += "(profiles\.[a-z-]+)"`, sources(t, "pkg/fieldmap")), "Annotations", `(profiles\.[a-z-]+)`)
}

func TestReferenceParameters(t *testing.T) {
	requireSame(t, matches(`Param\w+ += "(otel-profiles-[a-z]+)"`, sources(t, "operators/otel-profiles")), "Command line", `--(otel-profiles-[a-z]+)`)
}

func TestReferenceMetrics(t *testing.T) {
	code := sources(t, "operators/otel-profiles")
	names := append(matches(`(?:counter|upDown)\("([a-z_]+)"`, code), matches(`"ig_otel_profiles_([a-z_]+)"`, code)...)
	unwinder := sources(t, "operators/unwinder")
	for _, name := range matches(`counter\("([a-z_]+)"`, unwinder) {
		names = append(names, "unwinder_"+name)
	}
	names = append(names, matches(`"ig_otel_profiles_([a-z_]*[a-z])"`, unwinder)...)
	slices.Sort(names)
	requireSame(t, names, "Metrics", `ig_otel_profiles_([a-z_]+)`)

	units := map[string]string{}
	declared := regexp.MustCompile(`(?:(?:counter|upDown)\(|metrics\.\w+\("ig_otel_profiles_)"?([a-z_]+)", (?:metric\.WithUnit\()?"([^"]+)"`)
	for prefix, text := range map[string]string{"": code, "unwinder_": unwinder} {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			units[prefix+strings.TrimPrefix(m[1], prefix)] = m[2]
		}
	}
	require.Greater(t, len(units), 30)
	for _, m := range regexp.MustCompile("(?m)^\\| `ig_otel_profiles_([a-z_]+)` \\| ([a-z ]+) \\|").FindAllStringSubmatch(section(t, "Metrics"), -1) {
		unit := map[string]string{"By": "bytes", "s": "seconds"}[units[m[1]]]
		if unit == "" {
			unit = strings.ReplaceAll(strings.Trim(units[m[1]], "{}"), "_", " ") + "s"
		}
		require.Equal(t, unit, m[2], "the unit of %s", m[1])
	}
}

// The reference lists all results of events that need a stack.
func TestReferenceResults(t *testing.T) {
	code := sources(t, "operators/unwinder")
	results := append(matches(`Result\w+: +\{"([a-z_]+)"`, code), matches(`all\["([a-z_]+)"\]`, code)...)
	results = append(results, "result") // the head of the table
	slices.Sort(results)
	requireSame(t, results, "Whole stacks", `([a-z_]+)`)
}

// The reference lists all keys of a gadget's section operator.unwind.
func TestReferenceUnwind(t *testing.T) {
	keys := matches(`\bmetadata\.Get\w+\("([a-z]+)"\)`, sources(t, "operators/unwinder"))
	requireSame(t, keys, "Request whole stacks", `([a-z]+)`)
}

func TestReferenceReasons(t *testing.T) {
	reasons := append(matches(`Reason[A-Z]\w+ +Reason = "([a-z_]+)"`, sources(t, "pkg/export")),
		matches(`Reason[A-Z]\w+ +Reason = "([a-z_]+)"`, sources(t, "operators/otel-profiles"))...)
	slices.Sort(reasons)
	requireSame(t, reasons, "Reasons for drops", `([a-z_]+)`)
}

// The reference lists all attributes that the code writes, and the fields that it reads for them.
func TestReferenceAttributes(t *testing.T) {
	const name = `((?:service|k8s|container|host|os|process|thread|profile|pprof|proc|runtime)\.[A-Za-z0-9_.]*[A-Za-z0-9_])`
	code := matches(`"`+name+`"`, sources(t, "pkg/fieldmap")+sources(t, "pkg/profile"))
	// In the code, this is a prefix and not an attribute.
	code = slices.DeleteFunc(code, func(s string) bool { return s == "process.executable" })
	text := section(t, "Attributes")
	for _, attribute := range code {
		require.Contains(t, text, "`"+attribute+"`", "the reference says nothing of it")
	}
	gadgets, err := filepath.Glob("../../gadgets/*/gadget.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, gadgets)
	for _, gadget := range gadgets {
		metadata, err := os.ReadFile(gadget)
		require.NoError(t, err)
		for _, attribute := range matches(`profiles\.(?:sample|resource)-attribute: ([a-z_]+\.[a-z_.]+)`, string(metadata)) {
			require.True(t, strings.Contains(text, "`"+attribute+"`"), "the reference lacks the attribute %s of %s", attribute, gadget)
		}
	}
	for _, attribute := range matches("`"+name+"`", text) {
		require.Contains(t, append(code, "k8s.pod.label.<key>"), attribute, "the code knows nothing of it")
	}
}
