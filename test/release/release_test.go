//go:build e2e

// Package release checks a release's files. RELEASE names their folder: see "make test-release".
package release

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

var (
	machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	programs = []string{"gadgetctl", "ig", "profile", "unwinder"}
)

// files returns the names of the release's files.
func files(t *testing.T) []string {
	t.Helper()
	dir := os.Getenv("RELEASE")
	require.NotEmpty(t, dir, "RELEASE is not set: set it to the folder with the release, or run the test with make")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func attached(name string) string { return filepath.Join(os.Getenv("RELEASE"), name) }

// only returns the only name with this prefix and suffix.
func only(t *testing.T, prefix, suffix string) string {
	t.Helper()
	var found []string
	for _, name := range files(t) {
		if strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) {
			found = append(found, name)
		}
	}
	require.Len(t, found, 1, "%s*%s", prefix, suffix)
	return found[0]
}

// TestChecksums checks the files' checksums, and requires one for every file.
func TestChecksums(t *testing.T) {
	sums, err := os.Open(attached("SHA256SUMS"))
	require.NoError(t, err)
	defer func() { _ = sums.Close() }()
	var summed []string
	for lines := bufio.NewScanner(sums); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		require.True(t, ok, "%q", lines.Text())
		content, err := os.ReadFile(attached(name))
		require.NoError(t, err)
		is := sha256.Sum256(content)
		require.Equal(t, hex.EncodeToString(is[:]), sum, name)
		summed = append(summed, name)
	}
	want := slices.DeleteFunc(files(t), func(name string) bool { return name == "SHA256SUMS" })
	require.ElementsMatch(t, want, summed)
	// Each architecture has an archive, a deb, an rpm and four SBOMs. The gadgets' images come in addition.
	gadgets, err := filepath.Glob("../../gadgets/*/gadget.yaml")
	require.NoError(t, err)
	require.Len(t, summed, len(machines)*(3+len(programs))+len(gadgets))
}

// TestNames requires file names that GitHub's release page does not change.
func TestNames(t *testing.T) {
	for _, name := range files(t) {
		require.Regexp(t, `^[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]$`, name)
	}
}

// TestVersions requires that a release candidate's version sorts before the release, in deb and in rpm. The packages must have
// the version that they were built with.
func TestVersions(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		igtest.Output(t, "git", append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@example.invalid"}, args...)...)
	}
	makefile, err := filepath.Abs("../../Makefile")
	require.NoError(t, err)
	versionOf := func() string {
		cmd := exec.CommandContext(t.Context(), "make", "-s", "--no-print-directory", "-C", dir, "-f", makefile, "package-version")
		// This removes the settings of the make process that runs this test.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
			return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") || strings.HasPrefix(v, "PACKAGE_VERSION=")
		})
		out, err := cmd.Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "one")
	sorted := []string{versionOf()}
	for _, tag := range []string{"v1.0.0-rc.1", "v1.0.0-rc.2", "v1.0.0"} {
		git("commit", "-q", "--allow-empty", "-m", tag)
		git("tag", tag)
		sorted = append(sorted, versionOf())
	}
	require.Regexp(t, `^0\.0\.0~1\.[0-9a-f]+$`, sorted[0])
	require.Equal(t, []string{"1.0.0~rc.1", "1.0.0~rc.2", "1.0.0"}, sorted[1:])
	for i := range len(sorted) - 1 {
		low, high := sorted[i], sorted[i+1]
		igtest.Output(t, "dpkg", "--compare-versions", low, "lt", high)
		require.Equal(t, "-1", igtest.Output(t, "rpm", "--eval", `%{lua:print(rpm.vercmp("`+low+`", "`+high+`"))}`))
	}

	version := os.Getenv("RELEASE_VERSION")
	require.NotEmpty(t, version, "RELEASE_VERSION is not set: it is the version of the release; run the test with make")
	for arch := range machines {
		require.Equal(t, "ig-otel-profiles_"+strings.ReplaceAll(version, "~", "-")+"_linux_"+arch+".tar.gz", only(t, "ig-otel-profiles_", "_linux_"+arch+".tar.gz"))
		require.Equal(t, version, igtest.Output(t, "dpkg-deb", "-f", attached(only(t, "ig-otel-profiles_", "_"+arch+".deb")), "Version"))
	}
	for _, arch := range []string{"x86_64", "aarch64"} {
		rpm := attached(only(t, "ig-otel-profiles-", "."+arch+".rpm"))
		require.Equal(t, version, igtest.Output(t, "rpm", "-qp", "--nosignature", "--qf", "%{VERSION}", rpm))
	}
}

// TestArchives unpacks the archives. Their programs must be static and for their architecture, and those for this machine must run.
func TestArchives(t *testing.T) {
	for arch, machine := range machines {
		t.Run(arch, func(t *testing.T) {
			dir := t.TempDir()
			archive := only(t, "ig-otel-profiles_", "_linux_"+arch+".tar.gz")
			igtest.Output(t, "tar", "-C", dir, "-xzf", attached(archive))
			dir = filepath.Join(dir, strings.TrimSuffix(archive, ".tar.gz"))
			notices, err := os.ReadFile(filepath.Join(dir, "copyright"))
			require.NoError(t, err)
			require.Contains(t, string(notices), "GNU GENERAL PUBLIC LICENSE")
			for _, program := range programs {
				path := filepath.Join(dir, program)
				file, err := elf.Open(path)
				require.NoError(t, err)
				require.Equal(t, machine, file.Machine, program)
				for _, p := range file.Progs {
					require.NotEqual(t, elf.PT_INTERP, p.Type, "%s is not static", program)
				}
				require.NoError(t, file.Close())
				requireNotices(t, path, string(notices))
				requireSBOM(t, path, attached(only(t, "ig-otel-profiles_", "_linux_"+arch+"_"+program+".cdx.json")))
			}
			if arch != runtime.GOARCH {
				return
			}
			version := igtest.Output(t, filepath.Join(dir, "ig"), "version")
			require.Regexp(t, `(?m)^v\d+\.\d+\.\d+`, version)
			require.Regexp(t, `(?m)^ig-otel-profiles \S+$`, version)
			help, err := igrun.Command(t.Context(), filepath.Join(dir, "ig"), "run", "--help").CombinedOutput()
			require.NoError(t, err, "%s", help)
			require.Contains(t, string(help), "--verify-image")                                                // only a gadget's help contains the operators' flags
			usage, _ := exec.CommandContext(t.Context(), filepath.Join(dir, "profile"), "-h").CombinedOutput() // it exits with 2
			require.Contains(t, string(usage), "--seconds")
		})
	}
}

// requireNotices requires that the notices contain every module that Go lists in a program.
func requireNotices(t *testing.T, program, notices string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if dep.Version != "(devel)" && dep.Version != "" {
			require.Regexp(t, "(?m)^(Licence of|          ) "+regexp.QuoteMeta(dep.Path+"@"+dep.Version)+"[,:]$", notices, program)
		}
	}
}

// requireSBOM requires that the SBOM contains exactly the modules that Go lists in a program, with their versions.
func requireSBOM(t *testing.T, program, sbom string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	want := []string{"std@" + info.GoVersion}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		want = append(want, dep.Path+"@"+dep.Version)
	}
	require.Greater(t, len(want), 5, "%s", program)
	content, err := os.ReadFile(sbom)
	require.NoError(t, err)
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.NewDecoder(bytes.NewReader(content)).Decode(&bom))
	require.Equal(t, "CycloneDX", bom.BOMFormat)
	var has []string
	for _, c := range bom.Components {
		has = append(has, c.Name+"@"+c.Version)
	}
	require.ElementsMatch(t, want, has, "%s", sbom)
}

// TestPackages requires that each package names its architecture, and contains the archive's programs.
func TestPackages(t *testing.T) {
	const lib = "usr/lib/ig-otel-profiles"
	for arch, rpmArch := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		deb, rpm := attached(only(t, "ig-otel-profiles_", "_"+arch+".deb")), attached(only(t, "ig-otel-profiles-", "."+rpmArch+".rpm"))
		require.Equal(t, arch, igtest.Output(t, "dpkg-deb", "-f", deb, "Architecture"))
		require.Equal(t, rpmArch, igtest.Output(t, "rpm", "-qp", "--nosignature", "--qf", "%{ARCH}", rpm))
		dir := t.TempDir()
		igtest.Output(t, "dpkg-deb", "-x", deb, dir)
		archive := only(t, "ig-otel-profiles_", "_linux_"+arch+".tar.gz")
		igtest.Output(t, "tar", "-C", dir, "-xzf", attached(archive))
		for program, inside := range map[string]string{"gadgetctl": "usr/bin", "ig": lib, "profile": lib, "unwinder": lib} {
			inArchive, err := os.ReadFile(filepath.Join(dir, strings.TrimSuffix(archive, ".tar.gz"), program))
			require.NoError(t, err)
			inPackage, err := os.ReadFile(filepath.Join(dir, inside, program))
			require.NoError(t, err)
			require.True(t, bytes.Equal(inArchive, inPackage), "%s of %s", program, deb)
		}
	}
}
