// Package vm checks the data that the virtual machine of run.sh produces.
package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// container is a line in the guest's list of containers.
type container struct {
	kind, name, id, image, namespace, pod string
}

func readContainers(t *testing.T, path string) []container {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var list []container
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(strings.ReplaceAll(line, " -", " "))
		require.GreaterOrEqual(t, len(f), 4, line)
		c := container{kind: f[0], name: f[1], id: f[2], image: f[3]}
		if len(f) == 6 {
			c.namespace, c.pod = f[4], f[5]
		}
		list = append(list, c)
	}
	return list
}

// row is a row that the gadget printed.
type row struct {
	Samples int64
	Runtime struct{ ContainerID, ContainerName string }
}

// results returns the folder with a virtual machine's results. It skips the test if there is none.
func results(t *testing.T, variable string) string {
	t.Helper()
	out := os.Getenv(variable)
	if out == "" {
		t.Skip("needs a virtual machine's results: run make test-vm or make test-arm64")
	}
	return out
}

// expected returns the expected attributes of the container's resource.
func (c container) expected() map[string]string {
	name, tag, _ := strings.Cut(c.image, ":")
	want := map[string]string{
		"container.id":           c.id,
		"container.name":         c.name,
		"container.image.name":   name,
		"container.image.tags":   "[" + tag + "]", // a list
		"container.runtime.name": "containerd",
		"host.name":              "testvm",
		"os.type":                "linux",
		"service.name":           c.name,
		"k8s.namespace.name":     c.namespace,
		"k8s.pod.name":           c.pod,
	}
	if c.pod != "" {
		want["k8s.container.name"] = c.name
		want["service.name"] = c.pod
		want["service.namespace"] = c.namespace
	}
	return want
}

func TestContainersInVM(t *testing.T) {
	out := results(t, "VM_OUT")
	containers := readContainers(t, filepath.Join(out, "containers"))
	require.Len(t, containers, 7)
	printed := map[string]int64{} // container ID to samples, as ig prints them
	for _, r := range slices.Concat(readJSON[[]row](t, filepath.Join(out, "ig.json"))...) {
		printed[r.Runtime.ContainerID] += r.Samples
	}

	findings, err := os.ReadFile(filepath.Join(out, "findings"))
	require.NoError(t, err)
	for finding := range strings.Lines(string(findings)) {
		// This is the name of frames without any information. An example is the address zero at the end of some stacks.
		require.Contains(t, finding, strconv.Quote(stack.Unknown))
	}

	type arrival struct {
		resource map[string]string
		value    int64
		burns    bool
	}
	arrived := map[string]*arrival{} // by container ID
	for _, s := range readSamples(t, out) {
		id := s.Resource["container.id"]
		require.NotEmpty(t, id, "the run is limited to containers: %v", s.Resource)
		a := arrived[id]
		if a == nil {
			a = &arrival{resource: s.Resource}
			arrived[id] = a
		}
		require.Equal(t, a.resource, s.Resource, "a container keeps its resource")
		a.value += s.Total()
		a.burns = a.burns || igtest.Depth(s, "burn_inner") >= 0
	}

	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "started\tcontainer\tpod\tsamples printed\texported\tarrived as")
	failed := false
	for _, c := range containers {
		a := arrived[c.id]
		if strings.HasPrefix(c.kind, "not") {
			verdict := "nothing, as it should"
			if a != nil {
				verdict, failed = fmt.Sprintf("WRONG: %v", a.resource), true
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t0\t%s\n", c.kind, c.name, c.pod, printed[c.id], verdict)
			continue
		}
		if a == nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t0\tMISSING\n", c.kind, c.name, c.pod, printed[c.id])
			failed = true
			continue
		}
		var wrong []string
		for key, value := range c.expected() {
			if a.resource[key] != value {
				wrong = append(wrong, fmt.Sprintf("%s is %q, not %q", key, a.resource[key], value))
			}
		}
		verdict := "exactly that"
		if !a.burns {
			wrong = append(wrong, "burn_inner is in no stack")
		}
		if a.value != printed[c.id] {
			wrong = append(wrong, "not as many samples as printed")
		}
		if len(wrong) > 0 {
			slices.Sort(wrong)
			verdict, failed = "WRONG: "+strings.Join(wrong, ", "), true
		}
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%d\t%d\t%s\n", c.kind, c.name, c.namespace, c.pod, printed[c.id], a.value, verdict)
		delete(arrived, c.id)
	}
	require.NoError(t, w.Flush())
	t.Logf("profiles that arrived from the virtual machine\n%s", table.String())
	if failed {
		said, err := os.ReadFile(filepath.Join(out, "ig.err"))
		t.Logf("ig's log, %v:\n%s", err, said)
	}
	require.False(t, failed)
	for id, a := range arrived {
		// A pause container can appear when it starts. Other containers must not appear.
		require.NotContains(t, a.resource["container.name"], "elsewhere", id)
	}
}

// TestProfileOfAContainer requires that the command profile shows only the selected container. If it shows nothing, it says
// why.
func TestProfileOfAContainer(t *testing.T) {
	out := results(t, "VM_OUT")
	table, err := os.ReadFile(filepath.Join(out, "profile.txt"))
	require.NoError(t, err)
	t.Logf("%s", table)
	require.Contains(t, string(table), "CPU time of container late")
	require.Regexp(t, `(?m)^ *[0-9.]+% .*burn_inner`, string(table))
	for _, s := range readSamples(t, filepath.Join(out, "profile")) {
		require.Equal(t, "late", s.Resource["container.name"])
	}
	for _, name := range []string{"flamegraph.html", receiver.PprofFile, "run.json"} {
		require.FileExists(t, filepath.Join(out, "profile", name))
	}
}
