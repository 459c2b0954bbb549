//go:build e2e

package polyglot

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

// guestContainer is a container that test/vm/guest/languages.sh has run in the virtual machine.
type guestContainer struct {
	kind, name, id, image, namespace, pod string
	load                                  string // of package loads, or burn
}

// guestContainers reads the guest's list.
func guestContainers(t *testing.T, path string) []guestContainer {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var list []guestContainer
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		require.Len(t, f, 7, line)
		none := func(s string) string { return strings.TrimPrefix(s, "-") }
		list = append(list, guestContainer{f[0], f[1], f[2], f[3], none(f[4]), none(f[5]), f[6]})
	}
	return list
}

// identity returns the attributes that its resource must have.
func (c guestContainer) identity() map[string]string {
	image, _, _ := strings.Cut(c.image, ":")
	want := map[string]string{
		"container.id": c.id, "container.name": c.name, "container.image.name": image, "container.runtime.name": "containerd",
		"host.name": "testvm", "service.name": c.name, "k8s.namespace.name": c.namespace, "k8s.pod.name": c.pod,
	}
	if c.pod != "" {
		want["service.name"], want["k8s.container.name"] = c.pod, c.name
	}
	return want
}

// TestVirtualMachine checks profile_cpu's samples of containers in the virtual machine that test/vm/run.sh boots. Each
// container must have its own resource, also after it has exited. The container of another namespace is absent. Programs in
// three languages have whole stacks and true shares. Every sample is accounted for.
func TestVirtualMachine(t *testing.T) {
	out := os.Getenv("VM_OUT")
	if out == "" {
		t.Skip("needs a virtual machine's results: run make test-vm RUN=languages")
	}
	out = filepath.Join(out, "languages")
	printed := map[string]int64{} // by container ID
	rows, err := os.Open(filepath.Join(out, "ig.json"))
	require.NoError(t, err)
	defer rows.Close()
	for dec := json.NewDecoder(rows); dec.More(); {
		var second []struct {
			Samples int64
			Runtime struct{ ContainerID string }
		}
		require.NoError(t, dec.Decode(&second))
		for _, r := range second {
			printed[r.Runtime.ContainerID] += r.Samples
		}
	}
	findings, err := os.ReadFile(filepath.Join(out, "findings"))
	require.NoError(t, err)
	for finding := range strings.Lines(string(findings)) {
		require.Contains(t, finding, strconv.Quote(stack.Unknown))
	}

	profiles, err := os.Open(filepath.Join(out, "profiles.jsonl"))
	require.NoError(t, err)
	defer profiles.Close()
	requests, err := receiver.ReadJSONLines(profiles)
	require.NoError(t, err)
	arrived := map[string][]receiver.Sample{}
	delivered := int64(0)
	var resent receiver.Resent // a slow receiver gets a request twice
	for _, request := range requests {
		if resent.Is(request) {
			continue
		}
		for _, s := range receiver.Resolve(request) {
			id := s.Resource["container.id"]
			require.NotEmpty(t, id, "the run is limited to containers: %v", s.Resource)
			arrived[id] = append(arrived[id], s)
			delivered += s.Total()
		}
	}
	log, err := os.ReadFile(filepath.Join(out, "ig.err"))
	require.NoError(t, err)
	closing := readClosingLines(t, string(log))
	require.NoError(t, closing.Check(delivered))
	require.Zero(t, closing.Restarts)

	var table strings.Builder
	table.WriteString("| container started | container | program | samples | in the first 20 s: samples | complete | named | of Java's own threads: samples | later: samples | complete | named | shares found | samples that arrived |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	var wrong []string
	bad := func(c guestContainer, format string, args ...any) {
		wrong = append(wrong, c.name+": "+fmt.Sprintf(format, args...))
	}
	for _, c := range guestContainers(t, filepath.Join(out, "containers")) {
		samples := arrived[c.id]
		kind := strings.ReplaceAll(c.kind, "-", " ")
		if c.kind == "not-looked-at" {
			if len(samples) > 0 || printed[c.id] > 0 {
				bad(c, "%d samples of a namespace that is not profiled", igtest.Total(samples))
			}
			fmt.Fprintf(&table, "| %s | %s | %s | %d | | | | | | | | | nothing, as expected |\n", kind, c.name, c.load, igtest.Total(samples))
			continue
		}
		if len(samples) == 0 {
			bad(c, "no samples")
			continue
		}
		for _, s := range samples {
			for key, value := range c.identity() {
				if s.Resource[key] != value {
					bad(c, "%s is %q, not %q", key, s.Resource[key], value)
				}
			}
		}
		if igtest.Total(samples) != printed[c.id] {
			bad(c, "%d samples arrived, %d were printed", igtest.Total(samples), printed[c.id])
		}
		j := judgeGuest(t, c)
		parts := partsOf(samples, j.load)
		early, v := j.judge(parts.early), j.judge(parts.rest)
		fmt.Fprintf(&table, "| %s | %s%s | %s | %d | %s | %d | %s | %s | all of them |\n", kind, prefixed(c.pod, "/"), c.name, v.load.What, igtest.Total(samples),
			quality(early), igtest.Total(parts.runtime), quality(v), v.shares())
		if c.load != "burn" && c.kind == "before" && v.samples < minSamples {
			bad(c, "%d samples are too few", v.samples)
		}
		if v.samples == 0 && c.kind == "ended" { // it was too short
			continue
		}
		if percent(v.complete, v.samples) < 95 || percent(v.named, v.samples) < 95 {
			bad(c, "%d of %d samples are complete, %d named; the others end in %s", v.complete, v.samples, v.named, most(v.outermost))
		}
		if c.load != "burn" && v.off() > 5 {
			bad(c, "shares %s", v.shares())
		}
	}
	t.Logf("\n%s", table.String())
	require.Empty(t, wrong)
	if doc := os.Getenv("POLYGLOT_DOC"); doc != "" {
		writeTable(t, doc, "virtual machine table", fmt.Sprintf("`make test-vm RUN=languages` wrote this table on %s at commit %s, with Debian's kernel in QEMU without KVM, 2 CPUs, 99 Hz, on %s.\n\n%s",
			time.Now().UTC().Format("2006-01-02"), commit(t), runtime.GOARCH, table.String()))
	}
}

func prefixed(s, with string) string {
	if s == "" {
		return ""
	}
	return s + with
}

// quality returns the number of samples, and the complete and named parts, for the table.
func quality(v verdict) string {
	if v.samples == 0 {
		return "0 | |"
	}
	return fmt.Sprintf("%d | %.0f %% | %.0f %%", v.samples, percent(v.complete, v.samples), percent(v.named, v.samples))
}

// judgeGuest prepares the judge of a container's program.
func judgeGuest(t *testing.T, c guestContainer) *judge {
	t.Helper()
	if c.load == "burn" {
		return &judge{load: loads.Load{
			What: "C, statically linked", FrameType: "native", Entry: "main",
			Chain: []string{"main", "burn_outer"}, Shares: []loads.Share{{Function: "burn_inner", Percent: 100}},
		}}
	}
	p := buildLoads(t, find(t, c.load))[0]
	executable, err := filepath.EvalSymlinks(p.Args[0])
	require.NoError(t, err)
	j, err := newJudge(p, executable)
	require.NoError(t, err)
	return j
}
