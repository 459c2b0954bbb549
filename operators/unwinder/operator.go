// Package unwinder contains two Inspektor Gadget operators. unwind provides whole stacks in many languages for gadgets that
// request them in their metadata. otel-stacks provides them for Inspektor Gadget's own gadgets.
//
// Importing the package registers both.
package unwinder

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// operatorPriority makes the operators run after the OCI handler (-1000), which reads the metadata and loads the programs. They
// run before localmanager and kubemanager (-1), which look for data sources.
const operatorPriority = -100

// operator is shared by all runs.
type operator struct {
	tune.Plain
	broker *unwinder.Broker
	names  refcount.Value[*names.Namer]
	report reporter
	otel   otelStacks
}

func init() {
	shared = &operator{Plain: operatorPriority, broker: unwinder.New(log.StandardLogger())}
	operators.RegisterDataOperator(unwindOperator{shared})
	operators.RegisterDataOperator(otelOperator{shared})
	symbolizer.RegisterResolver(otelResolver{shared})
}
