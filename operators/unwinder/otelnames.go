package unwinder

import (
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// namePolls is the time between two checks for a row's missing names.
const namePolls = 10 * time.Millisecond

// otelResolver supplies Inspektor Gadget with the function names of whole stacks, for the text of rows.
type otelResolver struct{ *operator }

// Priority implements symbolizer.Resolver. This resolver runs before the resolvers for frame-pointer stacks.
func (otelResolver) Priority() int { return 0 }

// NewInstance implements symbolizer.Resolver. It returns nil for runs that do not use otelOperator.
func (r otelResolver) NewInstance(o symbolizer.SymbolizerOptions) (symbolizer.ResolverInstance, error) {
	if run, ok := r.otel.runs.Load(o.Context); ok {
		return otelNames{run.(*otelInstance)}, nil
	}
	return nil, nil
}

// otelNames is the resolver of one run.
type otelNames struct{ run *otelInstance }

// Resolve implements symbolizer.ResolverInstance. It returns nil if there is no whole stack. Other resolvers then name the
// frame-pointer stack's frames.
func (n otelNames) Resolve(task symbolizer.Task, _ []symbolizer.StackItemQuery, _ []symbolizer.StackItemResponse) ([]symbolizer.StackItemResponse, error) {
	// otelInstance.join has already waited for the stack of this row.
	u, missing := n.run.op.otel.event(task.CorrelationID)
	if missing != nil || u.Proc.PID != task.Tgid || wire.OtelAge(u.ID, task.EventBootTimestamp) > otelWindow {
		return nil, nil
	}
	s := u.Stack
	responses, pending := n.name(s)
	for late := time.Now().Add(patienceLeft(task.EventBootTimestamp)); pending && time.Now().Before(late); {
		time.Sleep(namePolls)
		responses, pending = n.name(s)
	}
	return responses, nil
}

// name returns the function names of a stack. If pending is true, a later call can return more names.
func (n otelNames) name(s *wire.Stack) (responses []symbolizer.StackItemResponse, pending bool) {
	var names []string
	for _, f := range s.Frames {
		var more bool
		names, more = n.run.rows.text(names, f)
		pending = pending || more
	}
	for _, name := range names {
		responses = append(responses, symbolizer.StackItemResponse{Found: true, Symbol: name})
	}
	return responses, pending
}

// GetEbpfReplacements implements symbolizer.ResolverInstance. Inspektor Gadget calls it even when it only describes the gadget.
// So otelInstance sets the replacement when the run starts.
func (otelNames) GetEbpfReplacements() map[string]any { return nil }

// IsPruningNeeded implements symbolizer.ResolverInstance. Stacks and names have their own limits.
func (otelNames) IsPruningNeeded() bool { return false }

// PruneOldObjects implements symbolizer.ResolverInstance.
func (otelNames) PruneOldObjects(time.Time, time.Duration) {}

// Close implements symbolizer.ResolverInstance. otelInstance owns all resources.
func (otelNames) Close() {}
