package otlpcheck

import "fmt"

// The places that rules come from.
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

// Rule is one thing that a request has to satisfy.
type Rule struct {
	// ID is short and stable, such as "sample-shape".
	ID string
	// Text says what has to be true.
	Text string
	// Source is the document that asks for it.
	Source string
}

// Violation is what Check reports: a place in a request that breaks a rule.
type Violation struct {
	// Path leads to the place, such as resource_profiles[0].scope_profiles[0].profiles[1].samples[3].
	Path string
	// Rule is the rule that is broken.
	Rule Rule
	// Detail says what was found.
	Detail string
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s: %s: %s (rule %s, %s)", v.Path, v.Rule.Text, v.Detail, v.Rule.ID, v.Rule.Source)
}

// The rules that Check and CheckBytes apply, and CheckKernelAddresses its own.
var (
	RuleDecodable    = Rule{"decodable", "the body is an ExportProfilesServiceRequest with valid UTF-8", protobufURL}
	RuleUnknownField = Rule{"unknown-field", "every field is one of the protocol's", protoURL}
	RuleUTF8         = Rule{"utf8", "text is valid UTF-8", protobufURL}
	RuleSize         = Rule{"size", "a request is smaller than 4 MiB", grpcURL}
	RuleNotEmpty     = Rule{"not-empty", "nothing empty is sent", profcheckURL}

	RuleTablePresent = Rule{"table-present", "every dictionary table has an element 0", protoURL}
	RuleTableZero    = Rule{"table-zero", "element 0 of a dictionary table is the zero value", protoURL}
	RuleDuplicate    = Rule{"duplicate", "a dictionary table has no duplicates", protoURL}
	RuleOrphan       = Rule{"orphan", "every element of a dictionary table is used by a profile", protoURL}
	RuleIndex        = Rule{"index", "an index is within its table", protoURL}

	RuleUniqueKey      = Rule{"unique-key", "no key is twice in one attribute list", resourceURL}
	RuleAttribute      = Rule{"attribute", "an attribute has a key, given in one way", commonURL}
	RuleAttributeValue = Rule{"attribute-value", "an attribute's text is at most 2048 bytes", pyroscopeURL}
	RulePlain          = Rule{"plain", "resource and scope attributes hold plain text, no references into the string table", thisProject}
	RuleEntityRef      = Rule{"entity-ref", "keys of an entity reference exist in the resource's attributes", resourceURL}
	RuleSchemaURL      = Rule{"schema-url", "resource and scope name their schema", thisProject}

	RuleSampleType = Rule{"sample-type", "a profile has a sample type and unit", protoURL}
	RulePeriod     = Rule{"period", "a profile has a period type, a period unit and a period above 0", thisProject}
	RuleTypeName   = Rule{"type-name", "a type has no '-' in its name", thisProject}
	RuleTime       = Rule{"time", "a profile has a time, and a duration unless its type begins with inuse_", protoURL}
	RuleProfileID  = Rule{"profile-id", "a profile has an ID of 16 bytes, not all zero, that no other profile of the request has", protoURL}
	RulePayload    = Rule{"payload", "an original payload and its format come together", protoURL}
	RuleMaxSamples = Rule{"max-samples", "a profile has at most 16000 samples", pyroscopeURL}

	RuleValues     = Rule{"values", "a sample has one value, or at least one timestamp, and equally many of both if it has both", protoURL}
	RuleShape      = Rule{"shape", "all samples of a profile have the same shape", protoURL}
	RuleMerged     = Rule{"merged", "samples of one stack, set of attributes and link are merged", protoURL}
	RuleTimestamps = Rule{"timestamps", "a timestamp is within [time, time+duration)", protoURL}

	RuleMappingRange   = Rule{"mapping-range", "a mapping's start is below its limit, or both are 0", profcheckURL}
	RuleMappingBuildID = Rule{"mapping-build-id", "a mapping has a build ID; where none is known mapping_index is 0", mappingsURL}
	RuleBuildIDForm    = Rule{"build-id-form", "a GNU build ID is hexadecimal; an htlhash is 32 hexadecimal digits", mappingsURL}
	RuleEmptyFrame     = Rule{"empty-frame", "a stack has no empty frames", thisProject}
	RuleAddress        = Rule{"address", "a location's address is within its mapping's range", protoURL}
	RuleLine           = Rule{"line", "a line has a function, and no negative number", profcheckURL}
	RuleFunctionName   = Rule{"function-name", "a function has a name, a system name or a file name", protoURL}
	RuleNotAddress     = Rule{"not-an-address", "no function is named after an address, and none [unknown] where the address is known", thisProject}
	RuleKernelAddress  = Rule{"kernel-address", "a kernel frame's address does not give away where the kernel is", thisProject}
	RuleLinkLength     = Rule{"link-length", "a link has a trace ID of 16 bytes and a span ID of 8, not all zero", profcheckURL}
)

// Rules returns all rules.
func Rules() []Rule {
	return []Rule{
		RuleDecodable, RuleUnknownField, RuleUTF8, RuleSize, RuleNotEmpty,
		RuleTablePresent, RuleTableZero, RuleDuplicate, RuleOrphan, RuleIndex,
		RuleUniqueKey, RuleAttribute, RuleAttributeValue, RulePlain, RuleEntityRef, RuleSchemaURL,
		RuleSampleType, RulePeriod, RuleTypeName, RuleTime, RuleProfileID, RulePayload, RuleMaxSamples,
		RuleValues, RuleShape, RuleMerged, RuleTimestamps,
		RuleMappingRange, RuleMappingBuildID, RuleBuildIDForm, RuleEmptyFrame, RuleAddress, RuleLine, RuleFunctionName,
		RuleNotAddress, RuleKernelAddress, RuleLinkLength,
	}
}
