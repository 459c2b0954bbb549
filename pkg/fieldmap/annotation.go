package fieldmap

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// These annotations describe a data source.
const (
	annStackFields = "profiles.stack-fields"
	annValueField  = "profiles.value-field"
	annName        = "profiles.name"
	annType        = "profiles.type"
	annUnit        = "profiles.unit"
	annPeriod      = "profiles.period"
	annPeriodType  = "profiles.period-type"
	annPeriodUnit  = "profiles.period-unit"
	annAggregation = "profiles.aggregation"
	annTimestamps  = "profiles.timestamps"
)

// These annotations describe a field. The first two take "true", "false" or the attribute's name.
const (
	annSampleAttribute   = "profiles.sample-attribute"
	annResourceAttribute = "profiles.resource-attribute"
	annTimestamp         = "profiles.timestamp"
	annTraceID           = "profiles.trace-id"
	annSpanID            = "profiles.span-id"
)

// sourceAnnotations and fieldAnnotations list all known annotations.
var (
	sourceAnnotations = []string{
		annStackFields, annValueField, annName, annType, annUnit, annPeriod, annPeriodType, annPeriodUnit, annAggregation, annTimestamps,
	}
	fieldAnnotations = []string{annSampleAttribute, annResourceAttribute, annTimestamp, annTraceID, annSpanID}
)

// unknownAnnotations warns about profiles.* annotations that are unknown or in the wrong place.
func (c *compiler) unknownAnnotations() {
	check := func(what string, annotations map[string]string, known, elsewhere []string, other string) {
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			switch {
			case !strings.HasPrefix(key, "profiles.") || slices.Contains(known, key):
			case slices.Contains(elsewhere, key):
				c.warnf("the annotation %s of %s is ignored: it applies only to %s", key, what, other)
			default:
				c.warnf("the annotation %s of %s is ignored because it is unknown; the closest match is %s", plainName(key), what, config.Nearest(key, known))
			}
		}
	}
	check("the data source", c.ann, sourceAnnotations, fieldAnnotations, "a field")
	for _, acc := range c.fields {
		check("the field "+plainName(acc.FullName()), acc.Annotations(), fieldAnnotations, sourceAnnotations, "a data source")
	}
}

// maxNameBytes limits the names and keys that an image can set.
const maxNameBytes = 128

// protectedPrefixes are prefixes of the keys that an image must not set. These keys identify a workload or the producer of the
// telemetry, or describe a frame's origin.
var protectedPrefixes = []string{
	"service", "k8s", "container", "host", "os", "cloud", "deployment", "telemetry",
	"process.executable", "profile", "pprof",
}

// checkName returns an error if a name or key from an image is invalid.
func checkName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("it is empty")
	case len(s) > maxNameBytes:
		return fmt.Errorf("it is longer than %d bytes", maxNameBytes)
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("._-/", c) >= 0:
		default:
			return fmt.Errorf("it must contain only letters, digits and . _ - /")
		}
	}
	return nil
}

// checkKey returns an error if an image must not set an attribute with this key.
func checkKey(key string) error {
	if err := checkName(key); err != nil {
		return err
	}
	if strings.HasPrefix(key, "__") {
		return fmt.Errorf("keys that start with __ are reserved for receivers")
	}
	lower := strings.ToLower(key)
	for _, p := range protectedPrefixes {
		if lower == p || strings.HasPrefix(lower, p+".") {
			return fmt.Errorf("an image must not set %s attributes", p+".*")
		}
	}
	// Receivers that only support labels replace dots and dashes with underscores.
	if isIdentityLabel(label(lower)) {
		return fmt.Errorf("it looks like an attribute that an image must not set")
	}
	return nil
}

// protectedLabelPrefixes are the protected prefixes in the form of receivers that only support labels. Ordinary words are not
// included: container_count identifies no workload.
var protectedLabelPrefixes = []string{
	"k8s_", "cloud_", "deployment_", "telemetry_", "process_executable_", "pprof_", "profile_frame_",
	"host_image_", "host_cpu_", "container_image_", "container_runtime_", "oci_",
}

// protectedLabels are the identity attributes without any of these prefixes.
var protectedLabels = func() map[string]struct{} {
	labels := map[string]struct{}{}
	for _, l := range []string{"host_ip", "host_mac", "host_type", "os_name", "os_version", "os_build_id", "os_description", "container_command"} {
		labels[l] = struct{}{}
	}
	for _, key := range resourceKeys {
		labels[label(key)] = struct{}{}
	}
	return labels
}()

func isIdentityLabel(label string) bool {
	_, ok := protectedLabels[label]
	return ok || slices.ContainsFunc(protectedLabelPrefixes, func(p string) bool { return strings.HasPrefix(label, p) })
}

var toLabel = strings.NewReplacer(".", "_", "-", "_", "/", "_")

func label(key string) string { return toLabel.Replace(key) }

// answer is the parsed value of a field's attribute annotation.
type answer struct {
	set  bool
	yes  bool
	name string // if empty and yes is set: the default name
}

func parseAnswer(annotations map[string]string, key string) answer {
	switch v := strings.TrimSpace(annotations[key]); strings.ToLower(v) {
	case "":
		return answer{}
	case "true":
		return answer{set: true, yes: true}
	case "false":
		return answer{set: true}
	default:
		return answer{set: true, yes: true, name: v}
	}
}

func isTrue(s string) bool { return strings.EqualFold(strings.TrimSpace(s), "true") }

// SplitList splits a comma-separated list, trims its entries and drops empty ones.
func SplitList(s string) []string {
	var list []string
	for _, e := range strings.Split(s, ",") {
		if e = strings.TrimSpace(e); e != "" {
			list = append(list, e)
		}
	}
	return list
}
