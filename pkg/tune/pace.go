package tune

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

// perRow are warnings that Inspektor Gadget's operators write for single rows. There can be thousands per second.
var perRow = []string{"stack with ID %d is lost: %s", "symbolizer: %s"}

// lostEvents is Inspektor Gadget's warning about events that it did not read in time. It has no counter for them.
const lostEvents = "reading event: lost %d samples"

// pace is the minimum time between two such warnings of one kind.
const pace = 10 * time.Second

// paced is a gadget's context that limits these warnings.
type paced struct {
	operators.GadgetContext
	log *pacedLog
}

// Logger implements operators.GadgetContext.
func (p paced) Logger() logger.Logger { return p.log }

const pacedVar = "otel-profiles/log"

// withPace returns the context for another operator of the gadget. All of its operators share one limit.
func withPace(gadgetCtx operators.GadgetContext) operators.GadgetContext {
	log := variable[*pacedLog](gadgetCtx, pacedVar)
	if log == nil {
		log = &pacedLog{Logger: gadgetCtx.Logger(), rate: warnings.Rate{Every: pace}}
		gadgetCtx.SetVar(pacedVar, log)
	}
	return paced{gadgetCtx, log}
}

// LostEvents returns how many events of a gadget Inspektor Gadget has reported as lost.
func LostEvents(gadgetCtx operators.GadgetContext) int64 {
	if log := variable[*pacedLog](gadgetCtx, pacedVar); log != nil {
		return log.lost.Load()
	}
	return 0
}

// pacedLog limits the warnings in perRow and counts lost events. It is safe for concurrent use.
type pacedLog struct {
	logger.Logger
	rate warnings.Rate // limits the warnings in perRow
	lost atomic.Int64
}

// Warnf implements logger.Logger.
func (l *pacedLog) Warnf(format string, args ...any) {
	if format == lostEvents && len(args) == 1 {
		n, _ := args[0].(uint64)
		l.lost.Add(int64(n))
	}
	if slices.Contains(perRow, format) {
		left, ok := l.rate.Due(format)
		if !ok {
			return
		}
		if left > 0 {
			format, args = format+" (and %d more since the last such line)", append(slices.Clip(args), left)
		}
	}
	l.Logger.Warnf(format, args...)
}
