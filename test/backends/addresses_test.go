//go:build e2e

package backends

import (
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
)

// TestAddresses runs programs without symbols and lets Parca name their functions from a debuginfod server that has
// the same files with symbols: the addresses that arrive have to be those of the files' symbol tables, whatever kind
// of file it is.
func TestAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("eBPF programs are for root alone")
	}
	files := &debuginfod{byID: map[string]string{}}
	server := httptest.NewTLSServer(files) // Parca asks over https alone
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	t.Setenv("SSL_CERT_FILE", writeFile(t, "authority.pem", string(authority)))
	p := startParca(t, "--debuginfod-upstream-servers="+strings.TrimPrefix(server.URL, "https://"))
	dir := t.TempDir()
	for _, kind := range []struct {
		name  string
		flags []string
	}{
		{"kind-pie", []string{"-fPIE", "-pie"}},
		{"kind-exec", []string{"-fno-pie", "-no-pie"}},
		// Its code is at an address that is not its offset in the file.
		{"kind-lld", []string{"-fPIE", "-pie", "-fuse-ld=lld"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			whole, program := filepath.Join(dir, kind.name+".whole"), filepath.Join(dir, kind.name)
			args := append([]string{"-O0", "-fno-omit-frame-pointer", "-g", "-Wl,--build-id=sha1", "-o", whole, "../e2e/testdata/burn.c"}, kind.flags...)
			output(t, "", "clang", args...)
			output(t, "", "strip", "-s", "-o", program, whole)
			id := files.add(t, whole)
			var known struct{ Reason string }
			call(t, "http://"+p.addr()+"/api/shouldinitiateupload", nil, map[string]string{"buildId": id, "buildIdType": "BUILD_ID_TYPE_GNU"}, &known)
			require.Contains(t, known.Reason, "debuginfod", "Parca looks for files that it was told of")
			config := "operator:\n  otel-profiles:\n    exporters:\n" + exporter(t, "parca", "parca", "parca", p.addr())
			begin := time.Now().Add(-time.Second)
			burn(t, program, config, "parca")
			all := span{begin, time.Now().Add(2 * time.Second)}

			right, user := int64(0), int64(0)
			var stacks []stack
			require.Eventually(t, func() bool {
				stacks = p.query(t, selector("service_name", kind.name), all)
				right, user = 0, 0
				for _, s := range stacks {
					user += s.value
					if slices.Contains(s.functions, "c_work") && slices.ContainsFunc(s.functions, func(f string) bool {
						return f == "c_heavy" || f == "c_light" || f == "c_kernel"
					}) {
						right += s.value
					}
				}
				return user > 0 && float64(right) > 0.9*float64(user)
			}, 2*time.Minute, 5*time.Second, "%s asked for; %d of %d right", files, right, user)
			t.Logf("%s: %.1f %% of the CPU time in functions of the right name", kind.name, 100*float64(right)/float64(user))
		})
	}
}

// debuginfod serves files by their build IDs.
type debuginfod struct {
	mu    sync.Mutex
	byID  map[string]string
	asked []string
}

func (d *debuginfod) add(t *testing.T, file string) (buildID string) {
	t.Helper()
	id := regexp.MustCompile(`Build ID: ([0-9a-f]+)`).FindStringSubmatch(output(t, "", "readelf", "-n", file))
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
