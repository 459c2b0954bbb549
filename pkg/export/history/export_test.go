package history

import (
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// ReadBounded is Read with a bound on the entries.
var ReadBounded = readAnswer

// Open is New with the test's clocks.
func Open(dir string, limit config.Retention, warn func(error), now func() time.Time, running func() time.Duration) (*Writer, error) {
	return open(dir, limit, warn, clock{now, running})
}
