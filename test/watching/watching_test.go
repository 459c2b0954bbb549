//go:build e2e

package watching

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

const (
	folder = "../../operators/otel-profiles/watching"
	page   = "../../docs/operate/monitoring.md"
	// runbook is the section of the page that lists the actions for each alert.
	runbook = "https://github.com/ig-otel-profiles/ig-otel-profiles/blob/main/docs/operate/monitoring.md#alerts-and-what-to-do"
	// metricsPage lists every metric with its unit.
	metricsPage = "../../docs/reference/metrics.md"
	// patience limits all waits on a busy machine.
	patience = 4 * time.Minute
)

// rules converts the PrometheusRule into rule files for a plain Prometheus in dir. It returns the alerts with their
// expressions.
func rules(t *testing.T, dir string) (string, map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "alerts.yaml"))
	require.NoError(t, err)
	var resource struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Spec       yaml.Node
	}
	require.NoError(t, yaml.Unmarshal(text, &resource))
	require.Equal(t, "monitoring.coreos.com/v1 PrometheusRule", resource.APIVersion+" "+resource.Kind)
	plain, err := yaml.Marshal(&resource.Spec)
	require.NoError(t, err)
	file := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(file, plain, 0o600))

	var spec struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, resource.Spec.Decode(&spec))
	alerts := map[string]string{}
	for _, g := range spec.Groups {
		for _, r := range g.Rules {
			alerts[r.Alert] = r.Expr
			require.Equal(t, runbook, r.Annotations["runbook_url"], "%s: the alert has no runbook", r.Alert)
		}
	}
	require.GreaterOrEqual(t, len(alerts), 6)
	return file, alerts
}

// tool runs promtool and returns its output.
func tool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("E2E_BIN"), "promtool"), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	t.Logf("promtool %s\n%s", strings.Join(args, " "), out)
	require.NoError(t, err)
	return string(out)
}

// TestAlerts checks the rules and runs their unit tests. Every alert must fire in one of these tests.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	file, alerts := rules(t, dir)
	tool(t, dir, "check", "rules", "--lint=all", "--lint-fatal", file)
	text, err := os.ReadFile("testdata/alerts_test.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts_test.yaml"), text, 0o600))
	require.Contains(t, tool(t, dir, "test", "rules", "alerts_test.yaml"), "SUCCESS")

	var tests struct {
		Tests []struct {
			Alerts []struct {
				Alertname string
				Expected  []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &tests))
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, unit := range tests.Tests {
		for _, a := range unit.Alerts {
			fires[a.Alertname] = fires[a.Alertname] || len(a.Expected) > 0
			quiet[a.Alertname] = quiet[a.Alertname] || len(a.Expected) == 0
		}
	}
	guide, err := os.ReadFile(page)
	require.NoError(t, err)
	for alert := range alerts {
		require.True(t, fires[alert], "no unit test in which %s fires", alert)
		require.True(t, quiet[alert], "no unit test in which %s does not fire", alert)
		require.Contains(t, string(guide), "| `"+alert+"` |", "the page has no section for %s", alert)
	}
}

// TestScrapeConfiguration checks the page's configuration with promtool.
func TestScrapeConfiguration(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```yaml\n(# prometheus.yaml\n.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, found, "the page has no prometheus.yaml")
	dir := t.TempDir()
	rules(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(found[1]), 0o600))
	tool(t, dir, "check", "config", "prometheus.yaml")
}

// documented returns the Prometheus names of the page's metrics, except Inspektor Gadget's.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(metricsPage)
	require.NoError(t, err)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(ig_otel_profiles_\\w+)` \\| ([\\w ]+) \\|").FindAllStringSubmatch(string(text), -1) {
		name, unit := m[1], m[2]
		if unit == "bytes" || unit == "seconds" {
			if !strings.HasSuffix(name, "_"+unit) {
				name += "_" + unit
			}
		}
		for _, suffix := range []string{"", "_total", "_bucket"} {
			known[name+suffix] = true
		}
	}
	require.Greater(t, len(known), 60)
	return known
}

// dashboard is the part of Grafana's dashboard that the test reads.
type dashboard struct {
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		Targets     []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "dashboard.json"))
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

var metricNames = regexp.MustCompile(`\big_[a-z_]+\b`)

// TestNames finds queries for metrics that do not exist. Such a query returns nothing, and no error.
func TestNames(t *testing.T) {
	known := documented(t)
	known["ig_gadgets_running"] = true // this metric is Inspektor Gadget's, and TestRealMetrics checks it
	_, alerts := rules(t, t.TempDir())
	queries := slices.Collect(maps.Values(alerts))
	for _, p := range readDashboard(t).Panels {
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Targets, p.Title)
		require.NotEmpty(t, p.Description, p.Title)
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, query := range queries {
		for _, name := range metricNames.FindAllString(query, -1) {
			require.True(t, known[name], "%s is not in docs/reference/metrics.md, in: %s", name, query)
		}
	}
}

// TestRealMetrics runs a gadget that sends to a Collector, which starts late. A Prometheus scrapes its metrics, and the test sends
// it every query of the dashboard and every alert.
func TestRealMetrics(t *testing.T) {
	collector := collectortest.New(t, "nop")
	t.Setenv(config.EnvPrefix+"OTLP_SAMPLING", "1/2")
	t.Setenv(config.EnvPrefix+"OTLP_RETRY_ON_FAILURE_MAX_INTERVAL", "5s")
	metrics := collectortest.FreeAddr(t)
	igtest.Start(t, igtest.Import(t, "profile_cpu"), "--otel-profiles-exporter=otlp", "--otel-profiles-endpoint=http://"+collector.GRPC, "--otel-profiles-interval=1s",
		"--otel-metrics-listen", "--otel-metrics-export-internals", "--otel-metrics-listen-address="+metrics)
	// This program keeps a CPU busy.
	igtest.StartEndless(t, exec.Command("python3", "-c", "def work():\n    while True: sum(range(1000))\nwork()"))
	prometheus := startPrometheus(t, t.TempDir(), metrics)
	prometheus.eventually(t, "rows are read", `sum(ig_otel_profiles_rows_read_total) > 10`)
	prometheus.eventually(t, "requests fail", `sum(ig_otel_profiles_request_retries_total) > 0`)
	prometheus.eventually(t, "they wait", `max(ig_otel_profiles_exporter_queue_size_bytes) > 0`)
	collector.Start()
	prometheus.eventually(t, "the gadget delivers", fmt.Sprintf(`increase(ig_otel_profiles_rows_delivered_total{instance=%q}[20s]) > 0`, metrics))
	prometheus.eventually(t, "one in two rows is left out", `sum(rate(ig_otel_profiles_rows_dropped_total{reason="sampled_out"}[20s])) > 0`)

	var table strings.Builder
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$__range", "10m", "$instance", ".*").Replace(target.Expr)
			series, value := prometheus.eventually(t, p.Title, query)
			fmt.Fprintf(&table, "%-45s %3d series, the first: %s\n", p.Title, series, value)
		}
	}
	t.Logf("every query of the dashboard, with the real metrics:\n%s", table.String())
	prometheus.requireRules(t)
}

// server is a running Prometheus.
type server struct{ address string }

func startPrometheus(t *testing.T, dir, target string) server {
	t.Helper()
	file, _ := rules(t, dir)
	settings := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: ig
    static_configs: [{targets: [%s]}]
`, file, target), 0o600))
	s := server{address: collectortest.FreeAddr(t)}
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	require.NoError(t, err)
	cmd := exec.Command(filepath.Join(os.Getenv("E2E_BIN"), "prometheus"), "--config.file="+settings,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+s.address)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("Prometheus said:\n%s", text)
		}
		_ = log.Close()
	})
	return s
}

// get decodes a response of the server's API.
func (s server) get(ctx context.Context, path string, query url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, body)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", query.Get("query"), answer.Error)
	}
	return nil
}

// eventually waits until a query returns a number. It returns the number of series and the first value.
func (s server) eventually(t *testing.T, what, query string) (int, string) {
	t.Helper()
	var last error
	for start := time.Now(); time.Since(start) < patience; time.Sleep(500 * time.Millisecond) {
		var data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
		if last = s.get(t.Context(), "query", url.Values{"query": {query}}, &data); last != nil {
			continue
		}
		for _, series := range data.Result {
			text := fmt.Sprint(series.Value[1])
			if _, err := strconv.ParseFloat(text, 64); err == nil && text != "NaN" {
				delete(series.Metric, "__name__")
				return len(data.Result), text + " " + fmt.Sprint(series.Metric)
			}
		}
	}
	require.NoError(t, last, "%s: %s", what, query)
	require.Failf(t, "no data", "%s: %s", what, query)
	return 0, ""
}

// requireRules requires that Prometheus evaluated every rule without an error.
func (s server) requireRules(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
		require.NoError(c, s.get(t.Context(), "rules", nil, &data))
		require.Len(c, data.Groups, 1)
		for _, r := range data.Groups[0].Rules {
			require.Equal(c, "ok", r.Health, "%s: %s", r.Name, r.LastError)
			require.NotEqual(c, "firing", r.State, r.Name)
		}
	}, patience, time.Second)
}
