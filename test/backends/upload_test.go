//go:build e2e

package backends

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// parcaDebuginfo is the environment variable with the path of a parca-debuginfo for TestUpload. Unlike the servers' modules, its
// Go module is not published. Without the tool, the test itself sends the tool's requests.
const parcaDebuginfo = "PARCA_DEBUGINFO"

// TestUpload profiles a stripped program into Parca, which has no names for it. Then it uploads the program's debug information,
// and Parca adds names to the stored profile.
func TestUpload(t *testing.T) {
	igtest.NeedRoot(t)
	p := startParca(t)
	dir := t.TempDir()
	whole, program, debug := filepath.Join(dir, "whole"), filepath.Join(dir, "uploaded"), filepath.Join(dir, "uploaded.debug")
	igtest.Output(t, "clang", "-O0", "-fno-omit-frame-pointer", "-g", "-Wl,--build-id=sha1", "-o", whole, "../e2e/testdata/burn.c")
	igtest.Output(t, "objcopy", "--only-keep-debug", whole, debug)
	igtest.Output(t, "strip", "-s", "-o", program, whole)
	id := (&debuginfod{byID: map[string]string{}}).add(t, program)
	_, all := burn(t, program, "operator:\n  otel-profiles:\n    exporters:\n"+exporter(t, "parca", "parca", "parca", p.addr()), "parca", burnTime)
	named := func() (right, user int64) {
		for _, s := range p.query(t, selector("service_name", "uploaded"), all) {
			user += s.value
			if slices.Contains(s.functions, "c_work") {
				right += s.value
			}
		}
		return right, user
	}
	right, user := named()
	require.Zero(t, right, "the names are not known yet")
	require.Positive(t, user)
	how := "the requests of parca-debuginfo"
	if tool := os.Getenv(parcaDebuginfo); tool != "" {
		how = tool
		said := igtest.Output(t, tool, "upload", "--store-address="+p.address, "--insecure", "--no-extract", debug)
		require.NotContains(t, said, "Skipping", "a build ID that Parca refuses")
	} else {
		p.upload(t, id, debug)
	}
	require.Eventually(t, func() bool {
		right, user = named()
		return float64(right) > 0.9*float64(user)
	}, 2*time.Minute, 5*time.Second)
	t.Logf("after the upload by %s %.1f %% of the CPU time is in functions of the right name", how, 100*float64(right)/float64(user))
}

// upload does what "parca-debuginfo upload" does, with the requests of Parca's parca.debuginfo.v1alpha1.DebuginfoService.
func (p *parca) upload(t *testing.T, id, file string) {
	t.Helper()
	const kind = "BUILD_ID_TYPE_GNU"
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	api := "http://" + p.address + "/api/"
	var should struct {
		ShouldInitiateUpload bool
		Reason               string
	}
	call(t, api+"shouldinitiateupload", nil, map[string]any{"buildId": id, "buildIdType": kind}, &should)
	require.True(t, should.ShouldInitiateUpload, should.Reason)
	var initiated struct {
		UploadInstructions struct{ UploadID, UploadStrategy string }
	}
	call(t, api+"initiateupload", nil, map[string]any{"buildId": id, "buildIdType": kind, "size": strconv.Itoa(len(content)), "hash": "1"}, &initiated)
	require.Equal(t, "UPLOAD_STRATEGY_GRPC", initiated.UploadInstructions.UploadStrategy)
	upload := initiated.UploadInstructions.UploadID
	var body strings.Builder // consecutive messages
	encoder := json.NewEncoder(&body)
	require.NoError(t, encoder.Encode(map[string]any{"info": map[string]string{"buildId": id, "uploadId": upload}}))
	require.NoError(t, encoder.Encode(map[string]any{"chunkData": content}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+"upload", strings.NewReader(body.String()))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	call(t, api+"markuploadfinished", nil, map[string]any{"buildId": id, "uploadId": upload}, &struct{}{})
}
