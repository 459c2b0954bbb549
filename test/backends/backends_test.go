//go:build e2e

package backends

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// frequency is the highest sampling rate that barely slows the program down.
const frequency = 999

// burnTime is the CPU time of a program, enough for a little more than 3,000 samples.
const burnTime = 4 * time.Second

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// moduleVersion returns the version of a server that the server's module here requires.
func moduleVersion(folder, module string) string {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = folder
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// burn runs a program with known shares for this CPU time while a gadget sends its samples to the exporters. It returns the CPU
// time that the program has used, and a time that contains all samples.
func burn(t *testing.T, program, config, exporters string, atLeast time.Duration, flags ...string) (used time.Duration, in span) {
	t.Helper()
	begin := time.Now().Add(-time.Second)
	ig := startGadget(t, "profile_cpu", config, exporters, append(flags, fmt.Sprintf("--frequency=%d", frequency), "--comm="+filepath.Base(program))...)
	ig.Says("exporting data source")
	time.Sleep(5 * time.Second) // ig loads the eBPF programs after it logs this line

	p := igtest.StartEndless(t, exec.Command(program)) // it does not see the end of its input while it is stopped
	require.Eventually(t, func() bool { return igtest.ScheduledTime(t, p.PID) >= atLeast }, 5*time.Minute, 10*time.Millisecond)
	// The program is stopped, but exists until its last samples are sent. So its files can be read.
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	time.Sleep(4 * time.Second)
	used = igtest.ScheduledTime(t, p.PID)
	ig.Stop()
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	p.Stop()
	require.Contains(t, ig.Log.String(), " 0 dropped")
	return used, span{begin, time.Now().Add(2 * time.Second)}
}

// sample profiles the whole machine with the gadget for some seconds, and returns ig's log.
func sample(t *testing.T, config string) string {
	t.Helper()
	said, _ := sampled(t, "profile_cpu", config, "zstd", "--otel-profiles-interval=1s", "--timeout=4")
	return said
}

// startGadget starts an ig command that gadgetCommand returns.
func startGadget(t *testing.T, gadget, config, exporters string, flags ...string) *igtest.Run {
	t.Helper()
	return igtest.StartCommand(t, gadgetCommand(t, gadget, config, exporters, flags...))
}

// gadgetCommand returns an ig command that runs a gadget with exporters of a configuration.
func gadgetCommand(t *testing.T, gadget, config, exporters string, flags ...string) *exec.Cmd {
	t.Helper()
	return igtest.Command(t, igtest.Import(t, gadget), append([]string{
		"--config=" + writeFile(t, "config.yaml", config), "--otel-profiles-exporter=" + exporters, "--otel-profiles-interval=2s", "--output=none",
	}, flags...)...)
}

// sampled runs a gadget to its end. It returns ig's log, and a time that contains all samples.
func sampled(t *testing.T, gadget, config, exporters string, flags ...string) (said string, in span) {
	t.Helper()
	cmd := gadgetCommand(t, gadget, config, exporters, flags...)
	begin := time.Now().Add(-time.Second)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out), span{begin, time.Now().Add(2 * time.Second)}
}

// asked reports whether a backend takes part. By default, all do. BACKENDS is a comma-separated list of backends.
func asked(backend string) bool {
	names := os.Getenv("BACKENDS")
	return names == "" || slices.Contains(strings.Split(names, ","), backend)
}

// needs skips a test of a backend that does not take part in this run.
func needs(t *testing.T, backend string) {
	t.Helper()
	if !asked(backend) {
		t.Skipf("BACKENDS=%s leaves out %s", os.Getenv("BACKENDS"), backend)
	}
}

// way is a way to send to one backend.
type way struct {
	title string
	server
	all       string   // selects all samples
	selectors []string // each must select all of the samples
	none      []string // each must select none
	absent    []string // labels that must not be there
}

func TestBackends(t *testing.T) {
	igtest.NeedRoot(t)
	// These are a pod's attributes as in Kubernetes, under the label's name and under the convention's name.
	const asLabel, asKey = "        resource: [k8s_pod_name=shop-1, deployment_environment_name=test]\n", "        resource: [k8s.pod.name=shop-1, deployment.environment.name=test]\n"
	pods := []string{selector("k8s_pod_name", "shop-1"), selector("deployment_environment_name", "test"), selector("k8s_pod_name", "shop-1", "host_arch", hostArch()), selector("service_name", service)}
	none := []string{selector("k8s_pod_name", "shop-2")}
	var ways []way
	var exporters []string
	config := "operator:\n  otel-profiles:\n    exporters:\n"
	add := func(example, preset, name, addr, settings string) {
		exporters = append(exporters, name)
		config += exporter(t, example, preset, name, addr) + settings
	}

	var asIs, dotted, second, behind *pyroscope
	var parcaDirect, parcaBehind *parca
	var starting sync.WaitGroup
	if asked("pyroscope") {
		starting.Go(func() { asIs = startPyroscope(t) })
		starting.Go(func() { dotted = startPyroscope(t, keepsDots) })
		starting.Go(func() { second = startPyroscope2(t) })
		starting.Go(func() { behind = startPyroscope(t, keepsDots) })
	}
	starting.Go(func() { parcaDirect = startParca(t) })
	starting.Go(func() { parcaBehind = startParca(t) })
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var behindAddr string // the address of Pyroscope, or of its replacement behind the Collector
	if asked("pyroscope") {
		// The storage of 2.x finds data that it has not compacted yet only by service name. Pyroscope's pages always query with a
		// service name.
		ofService := []string{selector("service_name", service, "k8s_pod_name", "shop-1"), selector("service_name", service, "deployment_environment_name", "test", "host_arch", hostArch())}
		notOfService := []string{selector("service_name", service, "k8s_pod_name", "shop-2")}
		add("pyroscope", "pyroscope", "as-is", asIs.addr(), asLabel)
		add("pyroscope", "pyroscope", "dotted", dotted.addr(), asKey)
		add("pyroscope", "pyroscope", "second", second.addr(), asKey)
		behindAddr = behind.addr()
		ways = append(ways,
			way{"Pyroscope " + asIs.version(), asIs, "{}", pods, none, nil},
			way{"Pyroscope " + asIs.version() + " with 2.x's label names", dotted, "{}", pods, none, []string{"k8s.pod.name", "service.name"}},
			way{"Pyroscope " + second.version() + " with 2.x's storage, too", second, selector("service_name", service), ofService, notOfService, []string{"k8s.pod.name", "service.name"}},
			way{"Pyroscope, behind the Collector", behind, "{}", pods, none, []string{"k8s.pod.name"}})
	} else {
		behindAddr = igtest.Receiver(t).Addr()
	}
	c := collectortest.NewWithConfig(t, collectortest.Documented(t, "backends-collector"), "PYROSCOPE="+behindAddr, "PARCA="+parcaBehind.addr(), "BACKEND_INSECURE=true")
	c.Start()
	add("parca", "parca", "parca", parcaDirect.addr(), asLabel)
	add("backends-exporter", "collector", "collector", c.GRPC, asKey)
	ways = append(ways,
		way{"Parca " + parcaDirect.version(), parcaDirect, "{}", pods, none, nil},
		way{"Parca, behind the Collector", parcaBehind, "{}", pods, none, nil})

	program := filepath.Join(t.TempDir(), "burn-go")
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", program, "../e2e/burn")
	used, all := burn(t, program, config, strings.Join(exporters, ","), burnTime)
	c.Stop() // it has sent everything
	all.until = time.Now().Add(2 * time.Second)
	middle := all.from.Add(all.until.Sub(all.from) / 2)

	results := map[string]map[string]string{}
	for _, w := range ways {
		results[w.title] = map[string]string{}
		t.Run(strings.ReplaceAll(w.title, " ", "_"), func(t *testing.T) {
			check(t, w, used, all, middle, results[w.title])
		})
	}
	report(t, ways, results)
}

// service is the service name of the test program.
const service = "burn-go"

func hostArch() string { return runtime.GOARCH }

// entry is a function that nearly all stacks of test/e2e/burn contain.
const entry = "main.main"

// shares are the known shares of test/e2e/burn.
var shares = map[string]float64{"main.heavy": 60, "main.light": 30, "main.rest": 10}

// check compares a backend's data with the truth, and records its findings.
func check(t *testing.T, w way, used time.Duration, all span, middle time.Time, found map[string]string) {
	sel := w.selectors[0]
	var stacks []stack
	require.Eventually(t, func() bool { // received data can become visible a little later
		stacks = w.query(t, w.all, all)
		return w.seconds(total(stacks), frequency) > 0.9*used.Seconds()
	}, time.Minute, 2*time.Second, "the samples do not arrive")

	sum := total(stacks)
	seconds := w.seconds(sum, frequency)
	samples := seconds * frequency
	require.GreaterOrEqual(t, samples, 3000.0)
	allowed := max(0.03, 3/math.Sqrt(samples)) * used.Seconds()
	require.InDelta(t, used.Seconds(), seconds, allowed, "CPU time")
	found["seconds"] = fmt.Sprintf("%.2f (true: %.2f), %.0f samples", seconds, used.Seconds(), samples)

	self, callers := map[string]int64{}, int64(0)
	for _, s := range stacks {
		i := slices.Index(s.functions, "main.work")
		if i < 1 {
			continue
		}
		self[s.functions[i-1]] += s.value
		last := s.functions[len(s.functions)-1]
		if slices.Contains(s.functions[i+1:], entry) && strings.HasPrefix(last, "runtime.goexit") {
			callers += s.value
		}
	}
	var names []string
	for _, f := range slices.Sorted(maps.Keys(shares)) {
		share := 100 * float64(self[f]) / float64(sum)
		require.InDelta(t, shares[f], share, 5, "%s of %v", f, self)
		names = append(names, fmt.Sprintf("%s %.0f %%", f, share))
	}
	found["functions"] = strings.Join(names, ", ")
	require.Greater(t, float64(callers), 0.95*float64(sum), "stacks up to the program's entry")
	found["callers"] = fmt.Sprintf("%.0f %% up to the entry", 100*float64(callers)/float64(sum))

	require.Equal(t, sum, w.stored(t, w.all, all), "the stored sum")
	require.Equal(t, sum, w.flame(t, w.all, all), "the flame graph's total")
	found["total"] = "flame graph equals storage"

	for _, s := range w.selectors {
		require.Equal(t, sum, total(w.query(t, s, all)), s)
	}
	for _, s := range w.none {
		require.Zero(t, total(w.query(t, s, all)), s)
	}
	labels := w.labels(t, w.all, all)
	for _, l := range w.absent {
		require.NotContains(t, labels, l)
	}
	for _, l := range []string{"k8s_pod_name", "service_name", "host_name"} {
		require.Contains(t, labels, l)
	}
	found["labels"] = fmt.Sprintf("each of %d queries finds all samples, for example `%s`", len(w.selectors), sel)

	left, right := w.diff(t, w.all, span{all.from, middle}, span{middle, all.until})
	compared := sum
	if w.name() == "parca" {
		compared = 0
		for _, s := range stacks {
			if slices.Contains(s.functions, entry) {
				compared += s.value
			}
		}
	}
	require.Positive(t, left)
	require.Positive(t, right)
	require.Equal(t, compared, left+right, "the two sides of a diff: %d and %d", left, right)
	found["diff"] = "the two ranges add up to the total"
}

// report logs the table, and writes it into the page on request.
func report(t *testing.T, ways []way, results map[string]map[string]string) {
	columns := []struct{ key, title string }{
		{"functions", "functions (true: 60, 30, 10 %)"}, {"callers", "callers"}, {"seconds", "CPU seconds"}, {"labels", "labels"}, {"total", "total"}, {"diff", "diff of two time ranges"},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "`make test-backends WRITE=1` wrote this table on %s. All backends received the samples of one run of `profile_cpu` at %d Hz, sent with the settings of the guides.\n\n", time.Now().UTC().Format("2 January 2006"), frequency)
	b.WriteString("| backend |")
	for _, c := range columns {
		b.WriteString(" " + c.title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, w := range ways {
		b.WriteString("| " + w.title + " |")
		for _, c := range columns {
			cell := results[w.title][c.key]
			if cell == "" {
				cell = "**failed**"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	t.Log("\n" + b.String())
	if asked("pyroscope") {
		writeTable(t, "backends", b.String())
	}
}
