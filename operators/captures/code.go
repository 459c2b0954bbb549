package captures

import (
	"os"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// code looks up the functions in frame-pointer stacks by address.
type code struct {
	names  *names.Namer
	tables *symbols.Shared
}

// newCode returns the code that all runs in this process share.
func newCode(gadgetCtx operators.GadgetContext) *code {
	tables := unwinder.TablesOf(gadgetCtx)
	return &code{
		names:  names.New(names.Options{HostRoot: os.Getenv("HOST_ROOT"), Store: tables.Acquire()}),
		tables: tables,
	}
}

func (c *code) close() {
	c.names.Close()
	c.tables.Release()
}

// If the classification needs function names, tellBlind logs once why they are unknown. The rows might not show the problem.
func (i *instance) tellBlind() {
	if i.classifier.kinds == nil || i.blind {
		return
	}
	const why = "their waits cannot be classified by function; grant CAP_SYS_PTRACE, and either CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
	if err := i.code.names.Err(); err != nil {
		i.blind = true
		i.log.Warnf("%s: no access to the processes so far (%v): %s", Name, err, why)
	} else if read, _ := i.code.names.Stats(); read.Denied > 0 {
		i.blind = true
		i.log.Warnf("%s: no access to %d processes so far: %s", Name, read.Denied, why)
	}
}
