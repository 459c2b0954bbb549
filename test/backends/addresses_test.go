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

// kinds are programs whose addresses in memory, in the file and in the symbol table differ in their own ways.
var kinds = []struct {
	name  string
	flags []string // of clang; none for a Go program
	// worker calls the functions, which do all of the work.
	worker    string
	functions []string
}{
	{"kind-pie", []string{"-fPIE", "-pie"}, "c_work", []string{"c_heavy", "c_light", "c_kernel"}},
	{"kind-exec", []string{"-fno-pie", "-no-pie"}, "c_work", []string{"c_heavy", "c_light", "c_kernel"}},
	// Its code is at an address that is not its offset in the file.
	{"kind-lld", []string{"-fPIE", "-pie", "-fuse-ld=lld"}, "c_work", []string{"c_heavy", "c_light", "c_kernel"}},
	// A stripped Go program is named before it leaves. The names of this one cannot be read.
	{"kind-go", nil, "main.work", []string{"main.heavy", "main.light", "main.rest"}},
}

// TestAddresses runs programs without symbols and lets Parca name their functions from a debuginfod server that has the
// same files with symbols, and Pyroscope from its store of symbols: the addresses that arrive have to be those of the files' symbol tables,
// whatever kind of file it is. Another Pyroscope gets functions called after files, and leaves those alone.
func TestAddresses(t *testing.T) {
	igtest.NeedRoot(t)
	files := &debuginfod{byID: map[string]string{}}
	overTLS := httptest.NewTLSServer(files) // Parca asks over https alone
	t.Cleanup(overTLS.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: overTLS.Certificate().Raw})
	t.Setenv("SSL_CERT_FILE", writeFile(t, "authority.pem", string(authority)))
	parca := startParca(t, "--debuginfod-upstream-servers="+strings.TrimPrefix(overTLS.URL, "https://"))
	exporters, symbolizing := "parca", []server{parca}
	config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, "parca", "parca", "parca", parca.addr())
	var bare, filled *pyroscope
	if asked("pyroscope") {
		bare, filled = startSymbolizingPyroscope(t), startSymbolizingPyroscope(t)
		exporters, symbolizing = "parca,bare,filled", []server{parca, bare}
		config += exporter(t, "pyroscope", "pyroscope", "bare", bare.addr()) + "        unnamed_functions: none\n" +
			exporter(t, "pyroscope", "pyroscope", "filled", filled.addr())
	}
	dir := t.TempDir()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			whole, program := filepath.Join(dir, kind.name+".whole"), filepath.Join(dir, kind.name)
			if kind.flags == nil {
				igtest.Output(t, "go", "build", "-buildvcs=false", "-ldflags=-B gobuildid", "-o", whole, "../e2e/burn")
			} else {
				igtest.Output(t, "clang", append([]string{"-O0", "-fno-omit-frame-pointer", "-g", "-Wl,--build-id=sha1", "-o", whole, "../e2e/testdata/burn.c"}, kind.flags...)...)
			}
			igtest.Output(t, "strip", "-s", "-o", program, whole)
			if kind.flags == nil {
				hideNames(t, program)
			}
			id := files.add(t, whole)
			for _, p := range []*pyroscope{bare, filled} {
				if p != nil {
					p.addSymbols(t, id, whole)
				}
			}
			var known struct{ Reason string }
			call(t, "http://"+parca.addr()+"/api/shouldinitiateupload", nil, map[string]string{"buildId": id, "buildIdType": "BUILD_ID_TYPE_GNU"}, &known)
			require.Contains(t, known.Reason, "debuginfod", "Parca looks for files that it was told of")
			begin := time.Now().Add(-time.Second)
			burn(t, program, config, exporters)
			all := span{begin, time.Now().Add(2 * time.Second)}
			for _, s := range symbolizing {
				right, user := int64(0), int64(0)
				require.Eventually(t, func() bool {
					right, user = 0, 0
					for _, s := range s.query(t, selector("service_name", kind.name), all) {
						user += s.value
						if slices.Contains(s.functions, kind.worker) && slices.ContainsFunc(s.functions, func(f string) bool { return slices.Contains(kind.functions, f) }) {
							right += s.value
						}
					}
					return user > 0 && float64(right) > 0.9*float64(user)
				}, 2*time.Minute, 5*time.Second, "%s: %s asked for", s.name(), files)
				t.Logf("%s, %s: %.1f %% of the CPU time in functions of the right name", kind.name, s.name(), 100*float64(right)/float64(user))
			}
			if filled == nil {
				return
			}
			inFile, user := int64(0), int64(0)
			for _, s := range filled.query(t, selector("service_name", kind.name), all) {
				require.NotContains(t, s.functions, kind.worker, "a frame with a function is left alone")
				user += s.value
				if slices.Contains(s.functions, "["+kind.name+"]") {
					inFile += s.value
				}
			}
			require.Greater(t, float64(inFile), 0.9*float64(user))
		})
	}
}

// hideNames writes nonsense where a Go program says where its functions' names begin. The program itself does not look there.
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
