// Package otlpcheck checks an OTLP profiles request against the protocol's rules, and against this project's stricter rules for
// its own requests.
//
// The protocol's rules come from the comments in profiles.proto, including every SHOULD that can be checked. The package adds
// limits of common receivers. Each rule names its source: see Rule. The checker is for tests and the demo's receiver. It is not
// for hot paths, because it keeps several copies of the request in memory.
package otlpcheck

import (
	"fmt"
	"regexp"
	"slices"
	"unicode/utf8"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Limits that Check applies.
const (
	// MaxRequestSize is the uncompressed size in bytes that a request must stay below.
	MaxRequestSize = 4 << 20
	// MaxSamples is the maximum number of samples in a profile.
	MaxSamples = 16_000
	// MaxAttributeValue is the maximum number of bytes in an attribute's text.
	MaxAttributeValue = 2048

	maxViolations = 200
)

// These are the paths of the dictionary's tables.
const (
	mappingTable   = "dictionary.mapping_table"
	locationTable  = "dictionary.location_table"
	functionTable  = "dictionary.function_table"
	linkTable      = "dictionary.link_table"
	stringTable    = "dictionary.string_table"
	attributeTable = "dictionary.attribute_table"
	stackTable     = "dictionary.stack_table"
)

// These are keys of attributes. KeyHTLHash and KeyFrameType are also in rules of receivers.
const (
	keyGNU       = "process.executable.build_id.gnu"
	keyGo        = "process.executable.build_id.go"
	KeyHTLHash   = "process.executable.build_id.htlhash"
	KeyFrameType = "profile.frame.type"
)

// buildIDKeys are the attributes that identify a mapping's file.
var buildIDKeys = []string{keyGNU, keyGo, KeyHTLHash}

// buildIDForms holds the format of each build ID that has a fixed format.
var buildIDForms = map[string]*regexp.Regexp{
	keyGNU:     regexp.MustCompile(`^([0-9a-fA-F]{2})+$`),
	KeyHTLHash: regexp.MustCompile(`^[0-9a-fA-F]{32}$`),
}

var addressLike = regexp.MustCompile(`^0[xX][0-9a-fA-F]+$`)

// nothingKnown is the name of a frame whose name and address are both unknown. Such a frame preserves the stack's depth.
const nothingKnown = "[unknown]"

// CheckBytes unmarshals body and checks it as Check does. It also finds fields that the protocol does not have, at any depth.
func CheckBytes(body []byte) []error { return checkBytes(body, nil) }

// checkBytes checks a request. If form is not nil, it first converts the request to the protocol's form.
func checkBytes(body []byte, form func(*collectorpb.ExportProfilesServiceRequest) error) []error {
	req := &collectorpb.ExportProfilesServiceRequest{}
	if err := proto.Unmarshal(body, req); err != nil {
		return []error{&Violation{Path: "request", Rule: RuleDecodable, Detail: err.Error()}}
	}
	if form != nil {
		if err := form(req); err != nil {
			return []error{err}
		}
	}
	return Check(req)
}

// Check returns the places where req breaks a rule, each as a *Violation, at most 200. It does not change req.
func Check(req *collectorpb.ExportProfilesServiceRequest) []error {
	c := newChecker(req)
	c.text("", req.ProtoReflect())
	if size := proto.Size(req); size >= MaxRequestSize {
		c.Fail("request", RuleSize, "it has %d bytes", size)
	}
	c.dictionary()
	c.resources()
	c.orphans()
	return c.Violations
}

// kernelStart is the lowest kernel address on any 64-bit machine that Linux supports.
const kernelStart = 1 << 63

// CheckKernelAddresses returns the kernel frames with an address in kernel space. Such an address reveals the kernel's location,
// which randomization hides. Check does not include it, because a setting allows raw addresses.
func CheckKernelAddresses(req *collectorpb.ExportProfilesServiceRequest) []error {
	c := newChecker(req)
	for i, l := range c.dict.LocationTable {
		if l.GetAddress() >= kernelStart && slices.Contains(c.texts(l.GetAttributeIndices(), KeyFrameType), "kernel") {
			c.Fail(at(locationTable, i), RuleKernelAddress, "%#x", l.GetAddress())
		}
	}
	return c.Violations
}

type checker struct {
	req  *collectorpb.ExportProfilesServiceRequest
	dict dictionary.Dictionary
	Violations

	// canon maps each element of a table to the index of the first equal element. Equal canonical indices mean equal values.
	canon map[string][]int32
	// used holds the elements of each table that a profile uses.
	used map[string][]bool

	profileIDs map[string]string
}

func newChecker(req *collectorpb.ExportProfilesServiceRequest) *checker {
	d := req.GetDictionary()
	if d == nil {
		d = &profilespb.ProfilesDictionary{}
	}
	return &checker{
		req: req, dict: dictionary.Dictionary{ProfilesDictionary: d},
		canon: map[string][]int32{}, used: map[string][]bool{}, profileIDs: map[string]string{},
	}
}

// text searches the whole message for invalid UTF-8 and unknown fields.
func (c *checker) text(path string, m protoreflect.Message) {
	if u := m.GetUnknown(); len(u) > 0 {
		c.Fail(orRequest(path), RuleUnknownField, "%d bytes of unknown fields", len(u))
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		p := string(fd.Name())
		if path != "" {
			p = path + "." + p
		}
		var check func(string, protoreflect.Value)
		switch fd.Kind() {
		case protoreflect.MessageKind:
			check = func(p string, v protoreflect.Value) { c.text(p, v.Message()) }
		case protoreflect.StringKind:
			check = func(p string, v protoreflect.Value) { c.utf8(p, v.String()) }
		default:
			return true // a number
		}
		if !fd.IsList() {
			check(p, v)
			return true
		}
		for i := range v.List().Len() {
			check(at(p, i), v.List().Get(i))
		}
		return true
	})
}

func (c *checker) utf8(path, s string) {
	if !utf8.ValidString(s) {
		c.Fail(path, RuleUTF8, "%q", s)
	}
}

func orRequest(path string) string {
	if path == "" {
		return "request"
	}
	return path
}

func at[T int | int32](path string, i T) string { return fmt.Sprintf("%s[%d]", path, i) }

// index reports whether i is within a table of n elements. A missing table is a separate violation, so index 0 does not report it
// again.
func (c *checker) index(path string, i int32, n int) bool {
	if i == 0 && n == 0 {
		return false
	}
	if i < 0 || int(i) >= n {
		c.Fail(path, RuleIndex, "%d of %d elements", i, n)
		return false
	}
	return true
}

func (c *checker) strindex(path string, i int32) { c.index(path, i, len(c.dict.StringTable)) }

// str returns the string at i, or "" if there is none.
func (c *checker) str(i int32) string { return c.dict.Str(i) }
