//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// servicesOf returns the services of samples.
func servicesOf(samples []receiver.Sample) []string {
	var services []string
	for _, s := range samples {
		if !slices.Contains(services, s.Service) {
			services = append(services, s.Service)
		}
	}
	return services
}

// TestProcessContext requires that programs in C and Go that publish their context get the service that the context names.
// Hostile programs must gain no more than the page says, and must not affect other programs. Stacks are collected in both ways.
func TestProcessContext(t *testing.T) {
	igtest.NeedRoot(t)
	for _, unwind := range []string{"whole", "frame-pointers"} {
		t.Run(unwind, func(t *testing.T) { testContext(t, unwind) })
	}
}

func testContext(t *testing.T, unwind string) {
	inC, inGo := compileC(t, "testdata/context.c"), compileGo(t, "./published", "published")
	evil := filepath.Join(filepath.Dir(inC), "hostile") // a separate service of the host, with its own limit
	require.NoError(t, os.Link(inC, evil))
	s := begin(t, igtest.Import(t, "profile_cpu"), "--frequency=99", "--unwind="+unwind)
	cart, checkout := start(t, inC, "cart"), start(t, inGo, "checkout")
	hostile := map[string]*igtest.Program{}
	for _, mode := range []string{"lengths", "huge", "absent", "version", "changing", "text", "file", "names"} {
		hostile[mode] = start(t, evil, "evil", mode)
	}
	all := append([]*igtest.Program{cart, checkout}, func() (list []*igtest.Program) {
		for _, p := range hostile {
			list = append(list, p)
		}
		return list
	}()...)

	// The guide's command finds the programs that publish.
	page, err := os.ReadFile("../../docs/guides/traces.md")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^sudo (grep .*)$`).FindSubmatch(page)
	require.NotNil(t, command)
	found := map[int]bool{}
	for start := time.Now(); len(found) < len(all); { // one of them maps its context again and again
		require.Less(t, time.Since(start), time.Minute, "found: %v", found)
		out, _ := exec.Command("sh", "-c", string(command[1])).Output() // some processes exit in the meantime
		for _, p := range all {
			if strings.Contains(string(out), fmt.Sprintf("/proc/%d/maps", p.PID)) {
				found[p.PID] = true
			}
		}
	}

	says := func(p *igtest.Program, service string) func([]receiver.Sample) bool {
		return func(samples []receiver.Sample) bool { return slices.Contains(servicesOf(of(samples, p.PID)), service) }
	}
	s.until("the service of the program in C", says(cart, "cart"))
	s.until("the service of the program in Go", says(checkout, "checkout"))
	cart.Next()
	s.until("the changed service", says(cart, "cartv"))
	s.until("samples of all programs", func(samples []receiver.Sample) bool {
		return !slices.ContainsFunc(all, func(p *igtest.Program) bool { return len(of(samples, p.PID)) == 0 })
	})
	s.until("a hostile name", says(hostile["text"], "evil\uFFFD[31m\uFFFD!"))
	for _, p := range all {
		p.Stop()
	}
	r := s.stop("samples")

	before := []string{filepath.Base(inC), filepath.Base(inGo), filepath.Base(evil)}
	own := r.samples[0].Resource["host.name"]
	for _, smp := range r.samples {
		require.Equal(t, own, smp.Resource["host.name"])
		require.Empty(t, smp.Resource["k8s.pod.name"])
		require.Empty(t, smp.Resource["container.id"])
	}
	named, total := int64(0), int64(0)
	for _, smp := range of(r.samples, checkout.PID) {
		total += smp.Total()
		if smp.Service == "checkout" {
			named += smp.Total()
			require.Equal(t, []string{"shop", "instance-1", "1.2", "prod", filepath.Base(inGo)}, []string{
				smp.Resource["service.namespace"], smp.Resource["service.instance.id"], smp.Resource["service.version"],
				smp.Resource["deployment.environment.name"], smp.Resource["process.executable.name"],
			})
		}
	}
	t.Logf("%d of %d samples of the program in Go have its service", named, total)
	require.Subset(t, append(before, "cart", "cartv"), servicesOf(ofProgram(r.samples, cart.PID)))
	for mode, p := range hostile {
		services := servicesOf(ofProgram(r.samples, p.PID))
		t.Logf("%s: %q", mode, services)
		switch mode {
		case "changing":
			require.Subset(t, append(before, "half"), services)
		case "text":
			require.Subset(t, append(before, "evil\uFFFD[31m\uFFFD!"), services)
		case "file":
			require.Subset(t, append(before, "evil"), services)
		case "names":
			services = slices.DeleteFunc(services, func(s string) bool { return slices.Contains(before, s) })
			require.LessOrEqual(t, len(services), 16)
			for _, service := range services {
				require.Regexp(t, regexp.MustCompile(`^(names-\d+|evil)$`), service)
			}
		default:
			require.Subset(t, before, services)
		}
	}
	require.NotContains(t, r.log, "restarting the file reader")
	require.NotContains(t, r.log, "because reading it failed")
}

// TestExampleOfTraces requires that the samples of the guide's example have the attributes that the guide lists. Only the host's
// name differs.
func TestExampleOfTraces(t *testing.T) {
	igtest.NeedRoot(t)
	page, err := os.ReadFile("../../docs/guides/traces.md")
	require.NoError(t, err)
	variables := regexp.MustCompile("`(OTEL_SERVICE_NAME)=([^`]+)` and `(OTEL_RESOURCE_ATTRIBUTES)=([^`]+)`").FindStringSubmatch(string(page))
	require.NotNil(t, variables)
	_, block, found := strings.Cut(string(page), "```text\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	want := map[string]string{}
	for line := range strings.Lines(block) {
		fields := strings.Fields(line)
		require.Len(t, fields, 2)
		want[fields[0]] = fields[1]
	}
	require.Contains(t, want, "host.name")
	want["host.name"], err = os.Hostname()
	require.NoError(t, err)
	require.Equal(t, variables[2], want["service.name"])
	for pair := range strings.SplitSeq(variables[4], ",") {
		key, value, _ := strings.Cut(pair, "=")
		require.Equal(t, value, want[key], key)
	}

	program := compileGo(t, "../backends/traced", "traced")
	s := begin(t, igtest.Import(t, "profile_cpu"), "--frequency=99")
	t.Setenv(variables[1], variables[2]) // for the program. ig has started without these variables, which would set its own names
	t.Setenv(variables[3], variables[4])
	p := start(t, program)
	s.until("the service of the traces", func(samples []receiver.Sample) bool {
		return slices.Contains(servicesOf(of(samples, p.PID)), variables[2])
	})
	p.Stop()
	compared := 0
	for _, smp := range of(s.stop("samples").samples, p.PID) {
		if smp.Service != variables[2] { // from before its context was read
			continue
		}
		compared++
		for key, value := range want {
			require.Equal(t, value, smp.Resource[key], key)
		}
	}
	require.Positive(t, compared)
}

// ofProgram is like of, but omits samples from before execve, when the process still ran the test's own program.
func ofProgram(samples []receiver.Sample, pid int) []receiver.Sample {
	return slices.DeleteFunc(of(samples, pid), func(s receiver.Sample) bool { return strings.HasSuffix(s.Service, ".test") })
}
