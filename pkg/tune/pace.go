package tune

import (
	"slices"
	"sync"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// perRow are the warnings that Inspektor Gadget's operators write for each row with something missing: thousands a second.
var perRow = []string{"stack with ID %d is lost: %s", "symbolizer: %s"}

// pace is the least time between two such warnings of a kind.
const pace = 10 * time.Second

// paced is a gadget's context in which these warnings come at that pace.
type paced struct {
	operators.GadgetContext
	log *pacedLog
}

// Logger implements operators.GadgetContext.
func (p paced) Logger() logger.Logger { return p.log }

const pacedVar = "otel-profiles/log"

// withPace returns the context for another operator of the gadget. All of them share one pace.
func withPace(gadgetCtx operators.GadgetContext) operators.GadgetContext {
	log := variable[*pacedLog](gadgetCtx, pacedVar)
	if log == nil {
		log = &pacedLog{Logger: gadgetCtx.Logger(), kinds: map[string]*kind{}}
		gadgetCtx.SetVar(pacedVar, log)
	}
	return paced{gadgetCtx, log}
}

// pacedLog is safe for concurrent use.
type pacedLog struct {
	logger.Logger
	mu    sync.Mutex
	kinds map[string]*kind // of perRow
}

type kind struct {
	last   time.Time
	untold int
}

// Warnf implements logger.Logger.
func (l *pacedLog) Warnf(format string, args ...any) {
	untold, now := 0, time.Now()
	if slices.Contains(perRow, format) {
		l.mu.Lock()
		k := l.kinds[format]
		if k == nil {
			k = &kind{}
			l.kinds[format] = k
		}
		if now.Sub(k.last) < pace {
			k.untold++
			l.mu.Unlock()
			return
		}
		untold, k.untold, k.last = k.untold, 0, now
		l.mu.Unlock()
	}
	if untold > 0 {
		format, args = format+" (and %d more since the last such line)", append(slices.Clip(args), untold)
	}
	l.Logger.Warnf(format, args...)
}
