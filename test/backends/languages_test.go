//go:build e2e

package backends

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestLanguages samples the whole machine while the demo's programs in several languages run. It sends the same rows to Pyroscope
// and to a receiver that adds them up. Most frames have no name. Pyroscope's flame graph must contain all samples, and each
// program must be a separate service.
func TestLanguages(t *testing.T) {
	needs(t, "pyroscope")
	igtest.NeedRoot(t)
	const frequency = 200 // a period without remainder
	const sources = "../../cmd/profile/demo/"
	dir := t.TempDir()
	igtest.Output(t, "clang", "-O1", "-fomit-frame-pointer", "-o", dir+"/busy", sources+"busy.c")
	igtest.Output(t, "javac", "-d", dir, sources+"Busy.java")
	igtest.Output(t, "go", "build", "-buildvcs=false", "-o", dir+"/burn-go", "../e2e/burn")
	programs := map[string][]string{
		"busy": {dir + "/busy"}, "burn-go": {dir + "/burn-go"}, "java": {"java", "-cp", dir, "Busy"},
		"python3": {"python3", sources + "busy.py"}, "node": {"node", sources + "busy.js"},
	}
	second := startPyroscope2(t)
	counting := igtest.Receiver(t)
	config := "operator:\n  otel-profiles:\n    exporters:\n" +
		exporter(t, "pyroscope", "pyroscope", "pyroscope", second.addr()) + patient +
		exporter(t, "pyroscope", "pyroscope", "counting", counting.Addr())

	for _, args := range programs {
		igtest.StartEndless(t, exec.Command(args[0], args[1:]...))
	}
	said, all := sampled(t, "profile_cpu", config, "pyroscope,counting", fmt.Sprintf("--frequency=%d", frequency), "--timeout=12")
	require.Contains(t, said, " 0 dropped")

	sent := map[string]int64{} // in nanoseconds, by service
	for _, s := range counting.Samples() {
		sent[s.Service] += s.Total() * time.Second.Nanoseconds() / frequency
	}
	var sum, unnamed int64
	for service, value := range sent {
		pick := selector("service_name", service)
		require.Eventually(t, func() bool { return second.stored(t, pick, all) == value }, time.Minute, 2*time.Second, "%s is stored", service)
		require.Equal(t, value, second.flame(t, pick, all), "the flame graph of %s has everything that was sent", service)
		sum += value
		for _, s := range second.query(t, pick, all) {
			if len(s.functions) > 0 && strings.HasPrefix(s.functions[0], "[") {
				unnamed += s.value
			}
		}
	}
	var shares []string
	for name := range programs {
		service := name
		for s := range sent { // python3 is named after its file, python3.11
			if strings.HasPrefix(s, name) {
				service = s
			}
		}
		require.Positive(t, sent[service], "service %s of %v", name, sent)
		shares = append(shares, fmt.Sprintf("%s %.2f s", service, time.Duration(sent[service]).Seconds()))
	}
	t.Logf("%d services: %.2f s were sent, stored and in the flame graphs; %.0f %% end in a frame that is named after its file; %s",
		len(sent), time.Duration(sum).Seconds(), 100*float64(unnamed)/float64(sum), strings.Join(shares, ", "))
}
