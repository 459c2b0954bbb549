//go:build e2e

package backends

import (
	"bytes"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// kinds lists programs whose addresses in memory, in the file and in the symbol table differ in various ways.
var kinds = []struct {
	name, title string
	flags       []string // for clang; empty for a Go program
}{
	{"kind-pie", "position-independent (PIE)", []string{"-fPIE", "-pie"}},
	{"kind-exec", "at fixed addresses (non-PIE)", []string{"-fno-pie", "-no-pie"}},
	{"kind-lld", "linked with LLD, so that the addresses of the code differ from its offsets in the file", []string{"-fPIE", "-pie", "-fuse-ld=lld"}},
	// The daemon itself finds the names of a stripped Go program. In this program, the names are unreadable.
	{"kind-go", "Go", nil},
}

// symbolizer is a server that resolves function names. name is its name in the table.
type symbolizer struct {
	server
	title string
}

// pairsTime is the CPU time that a program of pairs needs for about 20 samples in each function.
const pairsTime = 10 * time.Second

// TestAddresses sends programs without symbols to Parca and Pyroscope. Parca gets the function names from a debuginfod server that
// has the same files with symbols. Pyroscope gets them from its symbol store. For each kind of file, the addresses must match its
// symbol table. So each function must have its name, its caller and its CPU time. Another Pyroscope receives functions named after
// files, and must leave these unchanged.
func TestAddresses(t *testing.T) {
	igtest.NeedRoot(t)
	files := &debuginfod{byID: map[string]string{}}
	overTLS := httptest.NewTLSServer(files) // Parca sends requests only over https
	t.Cleanup(overTLS.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: overTLS.Certificate().Raw})
	t.Setenv("SSL_CERT_FILE", writeFile(t, "authority.pem", string(authority)))
	parca := startParca(t, "--debuginfod-upstream-servers="+strings.TrimPrefix(overTLS.URL, "https://"))
	exporters, symbolizing := "parca", []symbolizer{{parca, "Parca " + parca.version()}}
	config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, "parca", "parca", "parca", parca.addr())
	var bare, filled *pyroscope
	if asked("pyroscope") {
		bare, filled = startSymbolizingPyroscope(t), startSymbolizingPyroscope(t)
		exporters, symbolizing = "parca,bare,filled", append(symbolizing, symbolizer{bare, "Pyroscope " + bare.version() + "'s symbolizer"})
		config += exporter(t, "pyroscope", "pyroscope", "bare", bare.addr()) + "        unnamed_functions: none\n" +
			exporter(t, "pyroscope", "pyroscope", "filled", filled.addr())
	}
	dir := t.TempDir()
	sources := map[bool]string{false: writeFile(t, "pairs.c", pairsProgram(false)), true: writeFile(t, "pairs.go", pairsProgram(true))}
	table := &strings.Builder{}
	fmt.Fprintf(table, "`make test-backends WRITE=1` wrote this table on %s.\n\n| program |", time.Now().UTC().Format("2 January 2006"))
	for _, s := range symbolizing {
		fmt.Fprintf(table, " %s | CPU time |", s.title)
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", 2*len(symbolizing)) + "\n")
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			whole, program := filepath.Join(dir, kind.name+".whole"), filepath.Join(dir, kind.name)
			golang := kind.flags == nil
			if golang {
				igtest.Output(t, "go", "build", "-buildvcs=false", "-ldflags=-B gobuildid", "-o", whole, sources[golang])
			} else {
				igtest.Output(t, "clang", append([]string{"-O0", "-fno-omit-frame-pointer", "-g", "-Wl,--build-id=sha1", "-o", whole, sources[golang]}, kind.flags...)...)
			}
			requireApart(t, whole)
			igtest.Output(t, "strip", "-s", "-o", program, whole)
			var flags []string
			if golang {
				hideNames(t, program)
				flags = []string{"--unwind=frame-pointers"} // whole stacks of Go need the table that hideNames damages
			}
			id := files.add(t, whole)
			for _, p := range []*pyroscope{bare, filled} {
				if p != nil {
					p.addSymbols(t, id, whole)
				}
			}
			var known struct{ Reason string }
			call(t, "http://"+parca.addr()+"/api/shouldinitiateupload", nil, map[string]string{"buildId": id, "buildIdType": "BUILD_ID_TYPE_GNU"}, &known)
			require.Contains(t, known.Reason, "debuginfod", "Parca requests files that it knows")
			_, all := burn(t, program, config, exporters, pairsTime, flags...)
			fmt.Fprintf(table, "| %s |", kind.title)
			for _, s := range symbolizing {
				var got judged
				require.Eventually(t, func() bool {
					got = judgePairs(s.query(t, selector("service_name", kind.name), all))
					return got.right == pairs
				}, 2*time.Minute, 5*time.Second, "%s: %+v, asked for %s", s.name(), &got, files)
				share := 100 * float64(got.inRight) / float64(got.all)
				require.Greater(t, share, 95.0, "CPU time")
				t.Logf("%s, %s: %d of %d functions and %.1f %% of the CPU time have the right name and the right caller", kind.name, s.name(), got.right, pairs, share)
				fmt.Fprintf(table, " %d of %d functions | %.1f %% |", got.right, pairs, share)
			}
			table.WriteString("\n")
			if filled == nil {
				return
			}
			inFile, user := int64(0), int64(0)
			for _, s := range filled.query(t, selector("service_name", kind.name), all) {
				require.NotContains(t, strings.Join(s.functions, " "), functionName, "a frame with a function is unchanged")
				user += s.value
				if slices.Contains(s.functions, "["+kind.name+"]") {
					inFile += s.value
				}
			}
			require.Greater(t, float64(inFile), 0.9*float64(user))
		})
	}
	t.Log("\n" + table.String())
	if bare != nil {
		writeTable(t, "kinds", table.String())
	}
}

// hideNames overwrites the offset of the function names in a Go program. The program itself does not use it.
func hideNames(t *testing.T, file string) {
	t.Helper()
	parsed, err := elf.Open(file)
	require.NoError(t, err)
	table := parsed.Section(".gopclntab")
	require.NotNil(t, table)
	require.NoError(t, parsed.Close())
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	const nameOffset = 32 // of runtime.pcHeader
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 8), int64(table.Offset)+nameOffset)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// debuginfod serves files by their build IDs.
type debuginfod struct {
	mu    sync.Mutex
	byID  map[string]string
	asked []string
}

func (d *debuginfod) add(t *testing.T, file string) (buildID string) {
	t.Helper()
	id := regexp.MustCompile(`Build ID: ([0-9a-f]+)`).FindStringSubmatch(igtest.Output(t, "readelf", "-n", file))
	require.Len(t, id, 2)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byID[id[1]] = file
	return id[1]
}

func (d *debuginfod) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprint(d.asked)
}

func (d *debuginfod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	d.mu.Lock()
	file := ""
	if len(parts) > 2 {
		file = d.byID[parts[2]]
	}
	if len(d.asked) < 100 {
		d.asked = append(d.asked, r.URL.Path)
	}
	d.mu.Unlock()
	if file == "" || len(parts) != 4 || parts[3] != "debuginfo" && parts[3] != "executable" {
		http.NotFound(w, r)
		return
	}
	http.ServeFile(w, r, file)
}
