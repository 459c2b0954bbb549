package history

import (
	"os"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// ReadBounded calls Read with a limit for entries.
var ReadBounded = readAnswer

// EachSegment calls visit with the name of each segment.
func EachSegment(dir string, visit func(name string)) error {
	return eachSegment(dir, func(f *os.File, _ file) { visit(f.Name()) })
}

// Open calls New with the test's clocks.
func Open(dir string, limit config.Retention, warn func(error), now func() time.Time, running func() time.Duration) (*Writer, error) {
	return open(dir, limit, warn, func() (time.Time, time.Duration) { return now(), running() })
}
