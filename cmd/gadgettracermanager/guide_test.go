package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/resources"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// guideFile returns a file of the Kubernetes guide: the YAML block that starts with its name.
func guideFile(t *testing.T, name string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)```yaml\n# " + regexp.QuoteMeta(name) + "\n(.*?)```").FindStringSubmatch(readGuide(t))
	require.NotNil(t, block, "docs/operate/install.md has no %s", name)
	return block[1]
}

// loadGuide loads exporters from a config and from environment variables, as the daemon does.
func loadGuide(t *testing.T, text string, environ []string) *config.Set {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(text)))
	// "kubectl gadget deploy" rewrites the file.
	var rewritten strings.Builder
	require.NoError(t, v.WriteConfigTo(&rewritten))
	v = viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(rewritten.String())))
	set := config.Load(config.Sources{File: v, FileName: "config.yaml", Environ: environ, Daemon: true})
	require.Empty(t, set.Problems())
	require.Equal(t, []string{"backend", "collector"}, set.Names())
	return set
}

func TestGuideConfigLoads(t *testing.T) {
	set := loadGuide(t, guideFile(t, "daemon-config.yaml"), nil)
	exporter, err := set.Exporter("collector")
	require.NoError(t, err)
	require.Equal(t, []string{"app", "tier"}, exporter.PodLabels)
}

func TestGuideSecretReachesExporters(t *testing.T) {
	var secret struct {
		StringData map[string]string `yaml:"stringData"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(guideFile(t, "secret.yaml")), &secret))
	require.NotEmpty(t, secret.StringData)
	prefix := regexp.MustCompile(`--prefix=(\S+)`).FindStringSubmatch(readGuide(t))
	require.NotNil(t, prefix)
	var environ []string
	for key, value := range secret.StringData {
		if strings.HasSuffix(key, "_TLS_CA_PEM") {
			continue // the guide has no real certificate
		}
		environ = append(environ, prefix[1]+key+"="+value)
	}
	set := loadGuide(t, guideFile(t, "daemon-config.yaml"), environ)
	exporter, err := set.Exporter("collector")
	require.NoError(t, err)
	require.Len(t, exporter.Headers, 1)
	exporter, err = set.Exporter("backend")
	require.NoError(t, err)
	require.EqualValues(t, "put the token here", exporter.Auth.BearerToken)
}

func TestGuideHelmValuesAreTheSame(t *testing.T) {
	var values struct {
		AdditionalEnv []struct{ Name string } `yaml:"additionalEnv"`
		Config        struct {
			Operator map[string]any
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(guideFile(t, "values.yaml")), &values))
	var file struct{ Operator map[string]any }
	require.NoError(t, yaml.Unmarshal([]byte(guideFile(t, "daemon-config.yaml")), &file))
	for _, key := range []string{"otel-profiles", "otel-metrics"} {
		require.Equal(t, file.Operator[key], values.Config.Operator[key], key)
	}
	require.NotEmpty(t, values.AdditionalEnv)
	for _, env := range values.AdditionalEnv {
		require.True(t, strings.HasPrefix(env.Name, config.EnvPrefix), env.Name)
	}
}

// TestGuideManifestsParse requires that every YAML block is valid YAML.
func TestGuideManifestsParse(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readGuide(t), -1)
	require.Greater(t, len(blocks), 4)
	for _, block := range blocks {
		documents := 0
		for document := range strings.SplitSeq(block[1], "\n---\n") {
			var v map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(document), &v), document)
			require.NotEmpty(t, v)
			documents++
		}
		require.Positive(t, documents)
	}
}

// TestSwitchedConfig merges the config for a cluster that runs Inspektor Gadget into the defaults of "kubectl gadget deploy", as the
// command does. The result has the exporter, and the default key.
func TestSwitchedConfig(t *testing.T) {
	page, err := os.ReadFile("../../docs/quickstart/from-inspektor-gadget.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```yaml\n# daemon-config.yaml\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, block)
	v := viper.New()
	v.SetConfigType("yaml")
	var object struct{ Data map[string]string }
	deployed(t, "ConfigMap", &object)
	require.NoError(t, v.ReadConfig(strings.NewReader(object.Data["config.yaml"])))
	require.NoError(t, v.MergeConfig(bytes.NewReader(block[1])))
	require.True(t, v.GetBool("operator.oci.verify-image"))
	require.Len(t, v.GetStringSlice("operator.oci.public-keys"), 1)
	set := config.Load(config.Sources{File: v, FileName: "config.yaml", Daemon: true})
	require.Empty(t, set.Problems())
	require.Equal(t, []string{"collector"}, set.Names())
}

func readGuide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operate/install.md")
	require.NoError(t, err)
	return string(text)
}

// deployed decodes the first object of a kind in the manifest of "kubectl gadget deploy".
func deployed(t *testing.T, kind string, object any) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(resources.GadgetDeployment)); ; {
		var document yaml.Node
		require.NoError(t, decoder.Decode(&document), "the manifest has no %s", kind)
		var of struct{ Kind string }
		require.NoError(t, document.Decode(&of))
		if of.Kind == kind {
			require.NoError(t, document.Decode(object))
			return
		}
	}
}

// TestTrustListsCapabilities compares the page's table with the capabilities in Inspektor Gadget's manifest.
func TestTrustListsCapabilities(t *testing.T) {
	var object struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						SecurityContext struct {
							Capabilities struct{ Drop, Add []string }
						} `yaml:"securityContext"`
					}
				}
			}
		}
	}
	deployed(t, "DaemonSet", &object)
	capabilities := object.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities
	require.Equal(t, []string{"ALL"}, capabilities.Drop)
	require.NotEmpty(t, capabilities.Add)
	page, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## What the daemon may do\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z_, ]+) \|`).FindAllStringSubmatch(section, -1) {
		listed = append(listed, strings.Split(row[1], ", ")...)
	}
	require.ElementsMatch(t, capabilities.Add, listed)
}
