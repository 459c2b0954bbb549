package vm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// allocation is a row of Inspektor Gadget's trace_malloc.
type allocation struct {
	Time      int64 `json:"timestamp_raw"` // nanoseconds since 1970
	Proc      struct{ Comm string }
	Operation string
	Size      int64
	Ustack    struct{ Symbols string }
}

// TestTraceMalloc requires whole and named stacks from Inspektor Gadget's trace_malloc, which does not know this project. One
// program is in C without frame pointers, the other is in Python. Both allocate 60, 30 and 10 % of their bytes in three
// functions. In emulation, the unwinder takes half a minute to load and to read the programs' files. So a program counts from
// its first whole stack on.
func TestTraceMalloc(t *testing.T) {
	out := filepath.Join(results(t, "VM_OUT"), "malloc")
	log, err := os.ReadFile(filepath.Join(out, "ig.err"))
	if os.IsNotExist(err) {
		t.Skip("it takes RUN=malloc")
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "otel-stacks: ") {
			t.Log(strings.TrimSpace(line))
		}
	}
	const start = "; _start; " // the programs' entry
	programs := []struct {
		comm, whole, frames, file string
	}{
		{"shares-c", "; main; ", "native", ""},
		{"shares-python", "; main; <module>; ", "cpython", "shares.py"},
	}
	samples := readSamples(t, out)
	for _, p := range programs {
		t.Run(p.comm, func(t *testing.T) {
			rows := map[string]int64{}
			var all, whole, freed, freedWhole int64
			var since int64
			for _, a := range readJSON[allocation](t, filepath.Join(out, "ig.json")) {
				if since == 0 && a.Proc.Comm == p.comm && strings.Contains(a.Ustack.Symbols, p.whole) && strings.Contains(a.Ustack.Symbols, start) {
					since = a.Time
				}
				switch {
				case a.Proc.Comm != p.comm || since == 0:
				case !strings.HasSuffix(a.Operation, "alloc"):
					freed++
					if strings.Contains(a.Ustack.Symbols, start) {
						freedWhole++
					}
				default:
					all += a.Size
					if f := functionOf(a.Ustack.Symbols); f != "" && strings.Contains(a.Ustack.Symbols, p.whole) && strings.Contains(a.Ustack.Symbols, start) {
						whole += a.Size
						rows[f] += a.Size
					}
				}
			}
			t.Logf("text: %d bytes, %.1f %% whole and named, %v; %d frees, %d of them whole", all, percent(whole, all), rows, freed, freedWhole)
			requireShares(t, rows, whole, all)

			exported := map[string]int64{}
			all, whole = 0, 0
			for _, s := range samples {
				if s.Resource["process.executable.name"] != p.comm && s.Attributes["thread.name"] != p.comm || s.Start.UnixNano() < since {
					continue
				}
				all += s.Total()
				at := slices.IndexFunc(s.Stack, func(f receiver.Frame) bool { return functionOf(f.Name+"; ") != "" })
				if at < 0 || !slices.ContainsFunc(s.Stack[at:], func(f receiver.Frame) bool { return f.Name == "main" }) {
					continue
				}
				whole += s.Total()
				f := s.Stack[at]
				exported[functionOf(f.Name+"; ")] += s.Total()
				require.Equal(t, p.frames, f.Type)
				if p.file != "" {
					require.Equal(t, p.file, filepath.Base(f.File))
					require.Positive(t, f.Line)
				}
			}
			t.Logf("export: %d bytes, %.1f %% whole and named, %v", all, percent(whole, all), exported)
			requireShares(t, exported, whole, all)
		})
	}
}

// functionOf returns the first of the three functions that the text of a stack contains.
func functionOf(symbols string) string {
	for _, name := range []string{"heavy", "light", "rest"} {
		if strings.Contains("; "+symbols, "; "+name+"; ") {
			return name
		}
	}
	return ""
}

func percent(part, all int64) float64 { return 100 * float64(part) / float64(max(all, 1)) }

// requireShares requires that at least 93 % of the stacks are whole and named, and that the three functions have their shares
// of these stacks.
func requireShares(t *testing.T, bytes map[string]int64, whole, all int64) {
	t.Helper()
	require.Positive(t, all)
	require.GreaterOrEqual(t, percent(whole, all), 93.0)
	for name, want := range map[string]float64{"heavy": 60, "light": 30, "rest": 10} {
		require.InDelta(t, want, percent(bytes[name], whole), 3, name)
	}
}

// readJSON reads a file of JSON values.
func readJSON[T any](t *testing.T, path string) (values []T) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for dec := json.NewDecoder(f); dec.More(); {
		var v T
		require.NoError(t, dec.Decode(&v))
		values = append(values, v)
	}
	return values
}

// readSamples reads the samples that arrived. A repeated request counts once.
func readSamples(t *testing.T, out string) (samples []receiver.Sample) {
	t.Helper()
	f, err := os.Open(filepath.Join(out, "profiles.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	requests, err := receiver.ReadJSONLines(f)
	require.NoError(t, err)
	var resent receiver.Resent
	for _, req := range requests {
		if !resent.Is(req) {
			samples = append(samples, receiver.Resolve(req)...)
		}
	}
	require.NotEmpty(t, samples)
	return samples
}
