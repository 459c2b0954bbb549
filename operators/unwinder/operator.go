// Package unwinder is the Inspektor Gadget operator unwind: it gives the events of gadgets that ask for it in their metadata whole
// stacks, in many languages.
//
// Importing the package registers the operator.
package unwinder

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// operatorPriority lies between that of the OCI handler (-1000), which reads the metadata and loads the programs when it starts, and those
// of localmanager and kubemanager (-1), which look for data sources.
const operatorPriority = -100

// operator is what all runs share.
type operator struct {
	broker *unwinder.Broker
	names  sharedNames
	report reporter
}

func init() {
	shared = &operator{broker: unwinder.New(log.StandardLogger())}
	operators.RegisterDataOperator(unwindOperator{shared})
}
