// Package proccontext reads the service that a process publishes. An OpenTelemetry SDK publishes this context in its process's
// memory, as specified by OTEP 4719
// (https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md).
//
// A process can write anything there, so the amount of copied memory is limited. A Reader decodes the context in an
// unprivileged process. Callers never wait.
package proccontext

import (
	"hash/maphash"
	"strings"
	"unicode/utf8"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// Context describes the service that a process publishes, with these attributes. Each text can be empty.
type Context struct {
	Service     string // service.name
	Namespace   string // service.namespace
	Instance    string // service.instance.id
	Version     string // service.version
	Environment string // deployment.environment.name
	// Key is equal for equal Contexts in one run of this program, and never 0.
	Key uint64
}

// Keys lists a Context's attributes, in the order of its fields.
var Keys = [...]string{"service.name", "service.namespace", "service.instance.id", "service.version", "deployment.environment.name"}

// MaxText limits each text of a Context, in bytes.
const MaxText = 256

const separator = "\x00"

// Encode returns the values of Keys in the form of a Reader's answer. It cuts long texts.
func Encode(values [len(Keys)]string) []byte {
	for i, v := range values {
		values[i] = printable.Cut(strings.ReplaceAll(v, separator, string(utf8.RuneError)), MaxText)
	}
	return []byte(strings.Join(values[:], separator))
}

var seed = maphash.MakeSeed()

// parse parses the result of Encode. It returns nil if all values are empty. The texts are safe to print and send.
func parse(answer []byte) *Context {
	texts := strings.Split(string(answer), separator)
	if len(texts) != len(Keys) {
		return nil
	}
	for i := range texts {
		texts[i] = strings.TrimSpace(printable.Cut(printable.Clean(texts[i]), MaxText))
	}
	c := Context{Service: texts[0], Namespace: texts[1], Instance: texts[2], Version: texts[3], Environment: texts[4]}
	if c == (Context{}) {
		return nil
	}
	return keyed(c)
}

// keyed returns a Context with its Key.
func keyed(c Context) *Context {
	c.Key = 0
	c.Key = max(maphash.Comparable(seed, c), 1)
	return &c
}
