//go:build e2e

// Package page tests the flame graph page in a real browser.
package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/flamepage"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func frame(kind, name string) receiver.Frame { return receiver.Frame{Type: kind, Name: name} }

func unnamed(file string, address uint64) receiver.Frame {
	return receiver.Frame{Type: "native", Mapping: "/usr/lib/" + file, Address: address}
}

func interpreter(name string) receiver.Frame {
	return receiver.Frame{Type: "native", Name: name, Mapping: "/usr/bin/python3.11"}
}

func of(service, thread string, n int64, leafFirst ...receiver.Frame) receiver.Sample {
	return receiver.Sample{
		Type: "samples", Unit: "count", PeriodType: "cpu", PeriodUnit: "nanoseconds", Period: 10_000_000,
		Service: service, Resource: map[string]string{"container.name": service}, Attributes: map[string]string{"thread.name": thread},
		Values: []int64{n}, Stack: leafFirst,
	}
}

// samples returns samples of 10 s. The shop has 4 s in hashOrder, 2 s in sortOrder and 1 s in a library without names. The
// search has 3 s in Python.
func samples() []receiver.Sample {
	main, serve := frame("go", "main.main"), frame("go", "main.serve")
	hash := func(line int64) receiver.Frame {
		return receiver.Frame{Type: "go", Name: "main.hashOrder", File: "/src/order.go", Line: line}
	}
	return []receiver.Sample{
		of("shop", "worker-1", 290, hash(12), serve, main),
		of("shop", "worker-1", 10, hash(14), serve, main),
		of("shop", "worker-2", 100, hash(14), frame("go", "main.audit"), main),
		of("shop", "worker-1", 200, frame("kernel", "copy_to_user"), frame("go", "main.sortOrder"), serve, main),
		of("shop", "worker-1", 60, unnamed("libz.so.1", 0x10), unnamed("libz.so.1", 0x20), serve, main),
		of("shop", "worker-1", 40, unnamed("libz.so.1", 0x30), serve, main),
		of("search", "python3", 100, frame("cpython", "rank"), frame("cpython", "rank"), frame("cpython", "<module>")),
		of("search", "python3", 200, interpreter("long_add"), frame("cpython", "rank"), interpreter("list_sort"), frame("cpython", "rank"), frame("cpython", "<module>")),
	}
}

// hour returns samples of six times ten minutes. The shop has 1 s in each, and 3 s more in the fourth.
func hour() []receiver.Sample {
	var list []receiver.Sample
	for i := range 6 {
		at := time.Date(2026, 11, 24, 12, 10*i, 0, 0, time.UTC)
		all := []receiver.Sample{of("shop", "worker-1", 100, frame("go", "main.hashOrder"), frame("go", "main.main"))}
		if i == 3 {
			all = append(all, of("shop", "worker-1", 300, frame("go", "main.slow"), frame("go", "main.main")))
		}
		for _, s := range all {
			s.Start, s.End = at, at.Add(10*time.Minute)
			list = append(list, s)
		}
	}
	return list
}

// TestInBrowser writes the pages that browser.mjs checks, and runs browser.mjs.
func TestInBrowser(t *testing.T) {
	modules := os.Getenv("PAGE_MODULES")
	require.NotEmpty(t, modules, "run \"make test-page\"")
	dir := t.TempDir()
	write := func(name string, page flamepage.Page) {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, flamepage.Write(f, page))
		require.NoError(t, f.Close())
	}
	write("one.html", flamepage.Page{Title: "CPU time of the shop", Subtitle: "10 s", Sides: []flamepage.Side{{Samples: samples()}}})
	write("time.html", flamepage.Page{Title: "An hour of the shop", Step: 10 * time.Minute, Sides: []flamepage.Side{{Samples: hour()}}})
	after := []receiver.Sample{
		of("shop", "worker-1", 100, frame("go", "main.hashOrder"), frame("go", "main.serve"), frame("go", "main.main")),
		of("shop", "worker-1", 300, frame("go", "main.cacheOrder"), frame("go", "main.serve"), frame("go", "main.main")),
	}
	write("two.html", flamepage.Page{Title: "What has changed", Unit: "ms per second", Sides: []flamepage.Side{{Samples: samples(), Scale: 100}, {Samples: after, Scale: 100}}})
	libc := receiver.Frame{Type: "native", Name: "recv", Mapping: "/usr/lib/libc.so.6"}
	waits := []receiver.Sample{of("shop", "worker-1", 300, libc, frame("go", "main.ask"), frame("go", "main.main")), of("shop", "worker-1", 100, libc, frame("go", "main.main")), of("shop", "worker-2", 600, libc)}
	write("waits.html", flamepage.Page{Title: "Waits", Own: true, Sides: []flamepage.Side{{Samples: waits}}})
	evil := `</script><img src=x onerror="window.pwned=1"><b>`
	write("evil.html", flamepage.Page{Title: evil, Sides: []flamepage.Side{{Samples: []receiver.Sample{of(evil, evil, 5, frame(evil, evil), frame("go", "main.main"))}}}})

	script, err := filepath.Abs("browser.mjs")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "node", script, dir, os.Getenv("PAGE_SHOTS"))
	cmd.Env = append(os.Environ(), "PAGE_MODULES="+modules)
	output, err := cmd.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
}
