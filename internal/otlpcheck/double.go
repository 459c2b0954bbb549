package otlpcheck

import (
	"fmt"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// RuleDoubled replaces the protocol's rules on the function table in CheckDoubled.
var RuleDoubled = Rule{"doubled", "every function is in the table twice in a row, and lines refer to the second", "parca-dev/parca pkg/profile/encode.go"}

// CheckDoubled checks a body as CheckBytes does. The body's function table must contain every function twice in a row, and lines
// must refer to the second copy. This form breaks only the protocol's rules on duplicates and orphans. One receiver needs it,
// because it reads the entry before the right one.
func CheckDoubled(body []byte) []error { return checkBytes(body, single) }

// single removes the second copies from a doubled function table.
func single(req *collectorpb.ExportProfilesServiceRequest) error {
	d := req.GetDictionary()
	table := d.GetFunctionTable()
	if len(table)%2 != 1 {
		return &Violation{Path: functionTable, Rule: RuleDoubled, Detail: fmt.Sprintf("it has %d elements", len(table))}
	}
	for i := 1; i < len(table); i += 2 {
		if !proto.Equal(table[i], table[i+1]) {
			return &Violation{Path: at(functionTable, i), Rule: RuleDoubled, Detail: "the next element is not identical"}
		}
		table[(i+1)/2] = table[i]
	}
	if d != nil {
		d.FunctionTable = table[:(len(table)+1)/2]
	}
	for i, l := range d.GetLocationTable() {
		for _, line := range l.GetLines() {
			if line.GetFunctionIndex()%2 != 0 {
				return &Violation{Path: at(locationTable, i), Rule: RuleDoubled, Detail: fmt.Sprintf("a line refers to function %d", line.GetFunctionIndex())}
			}
			line.FunctionIndex /= 2
		}
	}
	return nil
}
