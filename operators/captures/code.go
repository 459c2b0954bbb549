package captures

import (
	"os"
	"sync"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// code knows the functions at the addresses of stacks by frame pointers.
type code struct {
	names  *names.Namer
	tables *symbols.Shared
}

// shared holds the one code that all runs in this process share, from the first acquire to the last release.
type shared struct {
	mu    sync.Mutex
	users int
	code  *code
}

// acquire returns the code, which it makes for the first. The tables of functions are those that all operators of this process share;
// where otel-profiles is not one of them, they are its own.
func (s *shared) acquire(gadgetCtx operators.GadgetContext) *code {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users > 1 {
		return s.code
	}
	root := os.Getenv("HOST_ROOT")
	v, _ := gadgetCtx.GetVar(fieldmap.TablesVar)
	tables := unwinder.Tables(v, log.StandardLogger())
	s.code = &code{
		names:  names.New(names.Options{HostRoot: root, Store: tables.Acquire()}),
		tables: tables,
	}
	return s.code
}

func (s *shared) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.code.names.Close()
		s.code.tables.Release()
		s.code = nil
	}
}

// tellBlind says once why functions are not known, where these decide what becomes of a capture: there may be no row that would say it.
func (i *instance) tellBlind() {
	if i.classifier.kinds == nil || i.blind {
		return
	}
	const why = "their waits cannot be classified by functions; grant CAP_SYS_PTRACE, with CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
	if err := i.code.names.Err(); err != nil {
		i.blind = true
		i.log.Warnf("%s: no access to any process so far (%v): %s", Name, err, why)
	} else if read, _ := i.code.names.Stats(); read.Denied > 0 {
		i.blind = true
		i.log.Warnf("%s: no access to %d processes so far: %s", Name, read.Denied, why)
	}
}
