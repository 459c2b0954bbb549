package tune

import (
	"slices"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
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
		log = &pacedLog{Logger: gadgetCtx.Logger(), rate: warnings.Rate{Every: pace}}
		gadgetCtx.SetVar(pacedVar, log)
	}
	return paced{gadgetCtx, log}
}

// pacedLog is safe for concurrent use.
type pacedLog struct {
	logger.Logger
	rate warnings.Rate // of perRow
}

// Warnf implements logger.Logger.
func (l *pacedLog) Warnf(format string, args ...any) {
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
