package otlpcheck

import "fmt"

// The sources of rules.
const (
	protoURL     = "https://github.com/open-telemetry/opentelemetry-proto/blob/v1.11.0/opentelemetry/proto/profiles/v1development/profiles.proto"
	commonURL    = "https://github.com/open-telemetry/opentelemetry-proto/blob/v1.11.0/opentelemetry/proto/common/v1/common.proto"
	resourceURL  = "https://github.com/open-telemetry/opentelemetry-proto/blob/v1.11.0/opentelemetry/proto/resource/v1/resource.proto"
	profcheckURL = "https://github.com/open-telemetry/sig-profiling/blob/main/profcheck/check.go"
	mappingsURL  = "https://opentelemetry.io/docs/specs/otel/profiles/mappings/"
	protobufURL  = "https://protobuf.dev/programming-guides/proto3/#scalar"
	pyroscopeURL = "https://github.com/grafana/pyroscope/blob/main/pkg/validation/limits.go"
	grpcURL      = "https://pkg.go.dev/google.golang.org/grpc#MaxRecvMsgSize"
	thisProject  = "this project: smaller and unambiguous messages"
)

// Rule is a requirement that a request must satisfy.
type Rule struct {
	// ID is short and stable, for example "sample-shape".
	ID string
	// Text states the rule.
	Text string
	// Source is the document that contains the rule.
	Source string
}

// Violation is a place in a request that breaks a rule.
type Violation struct {
	// Path is the path of the place, for example resource_profiles[0].scope_profiles[0].profiles[1].samples[3].
	Path string
	// Rule is the broken rule.
	Rule Rule
	// Detail describes the finding.
	Detail string
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s: %s: %s (rule %s, %s)", v.Path, v.Rule.Text, v.Detail, v.Rule.ID, v.Rule.Source)
}

// Violations collects the violations of a request, at most 200.
type Violations []error

// Fail adds a violation.
func (v *Violations) Fail(path string, rule Rule, format string, args ...any) {
	if len(*v) < maxViolations {
		*v = append(*v, &Violation{Path: path, Rule: rule, Detail: fmt.Sprintf(format, args...)})
	}
}

// Check and CheckBytes apply these rules, except RuleKernelAddress, which only CheckKernelAddresses applies.
var (
	RuleDecodable    = rule("decodable", "the body is an ExportProfilesServiceRequest with valid UTF-8", protobufURL)
	RuleUnknownField = rule("unknown-field", "every field is in the protocol", protoURL)
	RuleUTF8         = rule("utf8", "text is valid UTF-8", protobufURL)
	RuleSize         = rule("size", "a request is smaller than 4 MiB", grpcURL)
	RuleNotEmpty     = rule("not-empty", "nothing empty is sent", profcheckURL)

	RuleTablePresent = rule("table-present", "every dictionary table has an element 0", protoURL)
	RuleTableZero    = rule("table-zero", "element 0 of a dictionary table is the zero value", protoURL)
	RuleDuplicate    = rule("duplicate", "a dictionary table has no duplicates", protoURL)
	RuleOrphan       = rule("orphan", "every element of a dictionary table is used by a profile", protoURL)
	RuleIndex        = rule("index", "an index is within its table", protoURL)

	RuleUniqueKey      = rule("unique-key", "a key appears once in an attribute list", resourceURL)
	RuleAttribute      = rule("attribute", "an attribute has exactly one form of key", commonURL)
	RuleAttributeValue = rule("attribute-value", "an attribute's text is at most 2048 bytes", pyroscopeURL)
	RulePlain          = rule("plain", "resource and scope attributes hold plain text, not references into the string table", thisProject)
	RuleEntityRef      = rule("entity-ref", "keys of an entity reference exist in the resource's attributes", resourceURL)
	RuleSchemaURL      = rule("schema-url", "resource and scope name their schema", thisProject)

	RuleSampleType = rule("sample-type", "a profile has a sample type and unit", protoURL)
	RulePeriod     = rule("period", "a profile has a period type, a period unit and a period above 0", thisProject)
	RuleTypeName   = rule("type-name", "a type has no '-' in its name", thisProject)
	RuleTime       = rule("time", "a profile has a time, and a duration unless its type begins with inuse_", protoURL)
	RuleProfileID  = rule("profile-id", "a profile has an ID of 16 bytes, not all zero, that no other profile of the request has", protoURL)
	RulePayload    = rule("payload", "an original payload and its format come together", protoURL)
	RuleMaxSamples = rule("max-samples", "a profile has at most 16000 samples", pyroscopeURL)

	RuleValues     = rule("values", "a sample has one value, or at least one timestamp, and equally many of both if it has both", protoURL)
	RuleShape      = rule("shape", "all samples of a profile have the same shape", protoURL)
	RuleMerged     = rule("merged", "samples of one stack, set of attributes and link are merged", protoURL)
	RuleTimestamps = rule("timestamps", "a timestamp is within [time, time+duration)", protoURL)

	RuleMappingRange   = rule("mapping-range", "a mapping's start is below its limit, or both are 0", profcheckURL)
	RuleMappingBuildID = rule("mapping-build-id", "a mapping has a build ID; if none is known, mapping_index is 0", mappingsURL)
	RuleBuildIDForm    = rule("build-id-form", "a GNU build ID is hexadecimal; an htlhash is 32 hexadecimal digits", mappingsURL)
	RuleEmptyFrame     = rule("empty-frame", "a stack has no empty frames", thisProject)
	RuleAddress        = rule("address", "a location's address is within its mapping's range", protoURL)
	RuleLine           = rule("line", "a line has a function, and line and column numbers are not negative", profcheckURL)
	RuleFunctionName   = rule("function-name", "a function has a name, a system name or a file name", protoURL)
	RuleNotAddress     = rule("not-an-address", "no function is named after an address, or is [unknown] if its address is known", thisProject)
	RuleKernelAddress  = rule("kernel-address", "a kernel frame's address does not reveal the kernel's location", thisProject)
	RuleLinkLength     = rule("link-length", "a link has a trace ID of 16 bytes and a span ID of 8, not all zero", profcheckURL)
)

// rules holds every rule that the function rule has created, so a test can break each.
var rules []Rule

func rule(id, text, source string) Rule {
	r := Rule{id, text, source}
	rules = append(rules, r)
	return r
}
