package tune

import (
	"slices"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

// perRow are warnings that Inspektor Gadget's operators write for single rows. There can be thousands per second.
var perRow = []string{"stack with ID %d is lost: %s", "symbolizer: %s"}

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

// pacedLog limits the warnings in perRow. It is safe for concurrent use.
type pacedLog struct {
	logger.Logger
	rate warnings.Rate // limits the warnings in perRow
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
