package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

const example = `command: [/bin/hello]
env: [A=B]
labels: {version: "${VERSION}"}
set: {main.version: "${VERSION}"}
folders: [/tmp]
files:
  - {path: /etc/motd, input: motd, mode: 0600}
  - {path: /etc/license, module: github.com/stretchr/testify, source: LICENSE}
`

// hello is the manifest's line for a program. Linking it takes a second for each architecture.
const hello = "  - {path: /bin/hello, go: ./testdata/hello}\n"

// exampleArgs writes the example manifest and its input file, and returns arguments that use them.
func exampleArgs(t *testing.T, extra ...string) []string { return manifestArgs(t, example, extra...) }

func manifestArgs(t *testing.T, text string, extra ...string) []string {
	t.Helper()
	dir := t.TempDir()
	manifest, motd := filepath.Join(dir, "image.yaml"), filepath.Join(dir, "motd")
	require.NoError(t, os.WriteFile(manifest, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(motd, []byte("hi\n"), 0o644))
	return append([]string{"-manifest", manifest, "-file", "motd=" + motd, "-version", "v1.2.3"}, extra...)
}

// files returns the content of an image's only layer, by "path mode".
func files(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	rc, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer rc.Close()
	got := map[string]string{}
	for tr := tar.NewReader(rc); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid)
		require.Zero(t, h.Gid)
		require.Zero(t, h.ModTime.Unix())
		data, err := io.ReadAll(tr)
		require.NoError(t, err)
		got[fmt.Sprintf("%s %04o", h.Name, h.Mode)] = string(data)
	}
}

func TestEveryFormHoldsTheSame(t *testing.T) {
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/example:1"
	dir := t.TempDir()
	archive, layoutDir, rootfs := filepath.Join(dir, "a.tar"), filepath.Join(dir, "layout"), filepath.Join(dir, "root")
	require.NoError(t, run(t.Context(), manifestArgs(t, example+hello, "-arch", "amd64", "-ref", ref,
		"-archive", archive, "-layout", layoutDir, "-rootfs", rootfs, "-push", "-insecure")))

	img, err := tarball.ImageFromPath(archive, nil)
	require.NoError(t, err)
	fromArchive := files(t, img)
	require.Contains(t, fromArchive["bin/hello 0755"], "v1.2.3", "the program carries its version")
	require.Equal(t, "hi\n", fromArchive["etc/motd 0600"])
	require.Contains(t, fromArchive["etc/license 0644"], "MIT")
	require.Contains(t, fromArchive, "tmp/ 0755")

	index, err := layout.ImageIndexFromPath(layoutDir)
	require.NoError(t, err)
	top, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, top.Manifests, 1)
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	require.NoError(t, err)
	platforms, err := inner.IndexManifest()
	require.NoError(t, err)
	require.Len(t, platforms.Manifests, 1)
	require.Equal(t, "linux/amd64", platforms.Manifests[0].Platform.String())
	img, err = inner.Image(platforms.Manifests[0].Digest)
	require.NoError(t, err)
	require.Equal(t, fromArchive, files(t, img))

	tag, err := name.ParseReference(ref, name.Insecure)
	require.NoError(t, err)
	pushed, err := remote.Index(tag)
	require.NoError(t, err)
	digest, err := pushed.Digest()
	require.NoError(t, err)
	require.Equal(t, top.Manifests[0].Digest, digest)

	fromRootfs := map[string]string{}
	require.NoError(t, filepath.WalkDir(rootfs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == rootfs {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, data := strings.TrimPrefix(path, rootfs+"/"), []byte(nil)
		if d.IsDir() {
			rel += "/"
		} else if data, err = os.ReadFile(path); err != nil {
			return err
		}
		fromRootfs[fmt.Sprintf("%s %04o", rel, info.Mode().Perm())] = string(data)
		return nil
	}))
	require.Equal(t, fromArchive, fromRootfs)
}

func TestTwoBuildsHaveOneDigest(t *testing.T) {
	var digests []v1.Hash
	for _, arch := range []string{"amd64,arm64", "arm64,amd64"} {
		dir := filepath.Join(t.TempDir(), "layout")
		require.NoError(t, run(t.Context(), manifestArgs(t, example+hello, "-arch", arch, "-layout", dir)))
		index, err := layout.ImageIndexFromPath(dir)
		require.NoError(t, err)
		m, err := index.IndexManifest()
		require.NoError(t, err)
		require.Len(t, m.Manifests, 1)
		digests = append(digests, m.Manifests[0].Digest)
	}
	require.Equal(t, digests[0], digests[1])
}

func TestImageConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	require.NoError(t, run(t.Context(), exampleArgs(t, "-arch", "amd64,arm64", "-layout", dir)))
	top, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	m, err := top.IndexManifest()
	require.NoError(t, err)
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	require.NoError(t, err)
	m, err = index.IndexManifest()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"version": "v1.2.3"}, m.Annotations)
	require.Len(t, m.Manifests, 2)
	for i, arch := range []string{"amd64", "arm64"} {
		img, err := index.Image(m.Manifests[i].Digest)
		require.NoError(t, err)
		cfg, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "linux", cfg.OS)
		require.Equal(t, arch, cfg.Architecture)
		require.Equal(t, []string{"/bin/hello"}, cfg.Config.Cmd)
		require.Equal(t, []string{"A=B"}, cfg.Config.Env)
		require.Equal(t, "v1.2.3", cfg.Config.Labels["version"])
	}
}

// A folder that is no image layout, or has other files, is not overwritten.
func TestLayoutWipesNothingElse(t *testing.T) {
	for _, tt := range []struct {
		files []string
		want  string
	}{
		{[]string{"precious.json"}, "not an image layout"},
		{[]string{"precious.json", "index.json"}, "not an image layout"},
		{[]string{"precious.json", "index.json", "oci-layout"}, "also contains"},
	} {
		dir := t.TempDir()
		for _, name := range tt.files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(`{"schemaVersion": 2, "manifests": []}`), 0o600))
		}
		require.ErrorContains(t, run(t.Context(), exampleArgs(t, "-arch", "amd64", "-layout", dir)), tt.want)
		for _, name := range tt.files {
			require.FileExists(t, filepath.Join(dir, name))
		}
	}
	// An image layout is replaced.
	dir := t.TempDir()
	for range 2 {
		require.NoError(t, run(t.Context(), exampleArgs(t, "-arch", "amd64", "-layout", dir)))
	}
}

func TestWrongArguments(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-list"}, "-manifest is required"},
		{[]string{"-manifest", "m"}, "nothing to do"},
		{[]string{"-manifest", "m", "-arch", "amd64,arm64", "-rootfs", "r"}, "one architecture"},
		{[]string{"-manifest", "m", "-push"}, "set -ref"},
		{[]string{"-manifest", "m", "-list", "more"}, `unexpected argument "more"`},
		{[]string{"-manifest", "m", "-list", "-file", "a"}, "expected NAME=PATH"},
		{exampleArgs(t, "-list", "-file", "other=x"), "has no input other"},
	} {
		require.ErrorContains(t, run(t.Context(), tt.args), tt.want)
	}
}

func TestManifest(t *testing.T) {
	read := func(yaml string) (manifest, error) {
		path := filepath.Join(t.TempDir(), "m.yaml")
		require.NoError(t, os.WriteFile(path, []byte(yaml), 0o600))
		return readManifest(path)
	}
	_, err := read("files: [{path: /a, input: x}]\ncomand: [/x]")
	require.ErrorContains(t, err, "comand")
	require.ErrorContains(t, err, "m.yaml")
	m, err := read("files: [{path: /a, input: x}, {path: ../b, go: x}, {path: /c/../../d, input: x, mode: 0600}]\nfolders: [../e]")
	require.NoError(t, err)
	require.Equal(t, manifest{
		Folders: []string{"/e"},
		Files:   []file{{Path: "/a", Input: "x", Mode: 0o644}, {Path: "/b", Go: "x", Mode: 0o755}, {Path: "/d", Input: "x", Mode: 0o600}},
	}, m, "no path leads out of the image")
}

func TestMissingInputIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.yaml")
	require.NoError(t, os.WriteFile(path, []byte("files: [{path: /a, input: secret}]"), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"-manifest", path, "-list"}), "set -file secret=PATH")
}

// TestDockerfileAgrees compares the daemon's Dockerfile with its manifest: all files come from imagebuild, and the image config
// is the same.
func TestDockerfileAgrees(t *testing.T) {
	const dir = "../gadgettracermanager/"
	m, err := readManifest(dir + "image.yaml")
	require.NoError(t, err)
	f, err := os.Open(dir + "Dockerfile")
	require.NoError(t, err)
	defer f.Close()

	var build, final []string // instructions before and after "FROM scratch"
	stage := &build
	scanner := bufio.NewScanner(f)
	for line := ""; scanner.Scan(); {
		line += strings.TrimSpace(scanner.Text())
		if strings.HasPrefix(line, "#") || line == "" {
			line = ""
			continue
		}
		if head, ok := strings.CutSuffix(line, `\`); ok {
			line = head
			continue
		}
		if line == "FROM scratch" {
			stage = &final
		} else {
			*stage = append(*stage, line)
		}
		line = ""
	}
	require.NoError(t, scanner.Err())

	builds := strings.Join(build, "\n")
	require.Contains(t, builds, "/bin/imagebuild -manifest cmd/gadgettracermanager/image.yaml")
	require.Contains(t, builds, "-rootfs /rootfs")

	labels, env := map[string]string{}, []string(nil)
	label := regexp.MustCompile(`^LABEL ([^=]+)="(.*)"$`)
	for _, line := range final {
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "ARG":
		case "COPY":
			require.Equal(t, "--from=build /rootfs /", rest, "files come from the manifest only")
		case "ENV":
			env = append(env, rest)
		case "LABEL":
			kv := label.FindStringSubmatch(line)
			require.NotNil(t, kv, line)
			labels[kv[1]] = kv[2]
		case "CMD":
			require.Equal(t, `["`+strings.Join(m.Command, `", "`)+`"]`, rest)
		default:
			t.Fatalf("the manifest cannot say %q", line)
		}
	}
	require.Equal(t, m.Env, env)
	require.Equal(t, m.Labels, labels)
}
