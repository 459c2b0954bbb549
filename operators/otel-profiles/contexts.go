package otelprofiles

import (
	"os"
	"sync"

	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// contexts owns what processes say of themselves, as long as a gadget runs that exports it.
type contexts struct {
	mu      sync.Mutex
	current *proccontext.Resolver
	refs    int
}

// acquire returns the running Resolver, which it makes for the first.
func (c *contexts) acquire() *proccontext.Resolver {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refs++; c.refs == 1 {
		c.current = proccontext.New(os.Getenv("HOST_ROOT"), unwinder.NewContextReader(log.StandardLogger()))
	}
	return c.current
}

// release ends a Resolver that nobody uses any more.
func (c *contexts) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refs--; c.refs == 0 {
		c.current.Close()
		c.current = nil
	}
}
