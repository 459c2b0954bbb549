package history

import (
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// ReadBounded is Read with room for fewer entries.
var ReadBounded = readAnswer

// Open is New with clocks of the test's own.
func Open(dir string, limit config.Retention, warn func(error), now func() time.Time, running func() time.Duration) (*Writer, error) {
	return open(dir, limit, warn, clock{now, running})
}
