package unwinder

import (
	"os"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// Tables returns shared, if that is the *symbols.Shared which all operators of this process share. Where the operator otel-profiles, which
// has that, is not one of them, it returns tables of the caller's own, whose files a Reader reads.
func Tables(shared any, log Log) *symbols.Shared {
	if tables, ok := shared.(*symbols.Shared); ok && tables != nil {
		return tables
	}
	return symbols.NewShared(func() symbols.Options {
		return symbols.Options{Inlined: true, HostRoot: os.Getenv("HOST_ROOT"), Reader: NewReader(log, nil)}
	})
}
