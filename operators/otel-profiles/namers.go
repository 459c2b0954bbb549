package otelprofiles

import (
	"os"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// namer is what all gadgets of a process share to name their stacks, as long as one of them runs.
type namer struct {
	*names.Namer
	wait time.Duration // for printed text, at most, per stack
	refs int
}

// namers owns the namer of a process.
type namers struct {
	mu      sync.Mutex
	current *namer
	setting func() nameSettings
}

// nameSettings are those of names, which are the daemon's and not an exporter's.
type nameSettings struct {
	memory int64
	wait   time.Duration
	lines  bool
}

// acquire returns the running namer, which it makes for the first.
func (n *namers) acquire() *namer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil {
		s := n.setting()
		n.current = &namer{wait: s.wait, Namer: names.New(names.Options{
			HostRoot: os.Getenv("HOST_ROOT"),
			Symbols:  symbols.Options{Bytes: s.memory, Lines: s.lines, Inlined: s.lines},
		})}
	}
	n.current.refs++
	return n.current
}

// release ends a namer that nobody uses any more.
func (n *namers) release(u *namer) {
	n.mu.Lock()
	u.refs--
	last := u.refs == 0
	if last && n.current == u {
		n.current = nil
	}
	n.mu.Unlock()
	if last {
		u.Close()
	}
}

// defaultNames are the settings of names where there are none.
func defaultNames() nameSettings { return nameSettings{memory: 64 << 20, wait: 20 * time.Millisecond} }
