// Package unwinder is the Inspektor Gadget operator unwinder: it gives a gadget that asks for it in its metadata a data source with
// samples of what all programs burn CPU time in, with whole stacks in many languages. The gadget has no eBPF program of its
// own; profile_polyglot is one.
//
//	operator:
//	  unwinder:
//	    enabled: true
//
// Importing the package registers the operator.
package unwinder

import (
	"fmt"
	"strconv"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	log "github.com/sirupsen/logrus"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// Name is the operator's name, and its section in a gadget's metadata: operator.unwinder.
const Name = "unwinder"

// The operator's parameters, which are flags of ig run and kubectl gadget run.
const (
	ParamFrequency = "frequency"
	ParamPID       = "pid"
	ParamComm      = "comm"
	ParamText      = "format-stacks"
)

// textAuto leaves out text that nobody reads.
const textAuto = "auto"

// operatorPriority lies between that of the OCI handler (-1000), which reads the metadata, and those of localmanager and kubemanager
// (-1), which look for data sources.
const operatorPriority = -100

type operator struct {
	broker *unwinder.Broker
	names  sharedNames
	report reporter
}

func init() {
	o := &operator{broker: unwinder.New(log.StandardLogger())}
	operators.RegisterDataOperator(o)
	operators.RegisterDataOperator(unwindOperator{o})
}

// Name implements operators.DataOperator.
func (*operator) Name() string { return Name }

// Init implements operators.DataOperator.
func (*operator) Init(*params.Params) error { return nil }

// GlobalParams implements operators.DataOperator: there are none.
func (*operator) GlobalParams() api.Params { return nil }

// Priority implements operators.DataOperator.
func (*operator) Priority() int { return operatorPriority }

// InstanceParams implements operators.DataOperator. Inspektor Gadget shows them for gadgets that ask for samples only.
func (*operator) InstanceParams() api.Params {
	return append(api.Params{
		{
			Key: ParamFrequency, DefaultValue: "19", TypeHint: api.TypeUint32,
			Description: "Samples per second of CPU time, for each CPU",
		},
		{
			Key: ParamPID, DefaultValue: "0",
			Description: "Only the processes with these PIDs, comma-separated",
		},
		{
			Key:         ParamComm,
			Description: "Only threads with these names, comma-separated",
		},
		{
			Key: ParamText, DefaultValue: textAuto, PossibleValues: []string{textAuto, "true", "false"},
			Description: "Turn the stack of each row into text: true, false or auto, which does so if somebody reads the rows",
		},
	}, unwindParams()...)
}

// enabled tells whether a gadget's metadata asks for samples.
func enabled(gadgetCtx operators.GadgetContext) bool {
	cfg, ok := gadgetCtx.GetVar("config")
	if !ok {
		return false
	}
	v, ok := cfg.(*viper.Viper)
	return ok && v.GetBool("operator."+Name+".enabled")
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil for gadgets that do not ask for samples, and on a
// client: those come from where the gadget runs.
func (o *operator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if gadgetCtx.IsClient() || !enabled(gadgetCtx) {
		return nil, nil
	}
	i := &instance{op: o, broker: o.broker, log: gadgetCtx.Logger()}
	i.filter.now = sinceBoot
	if err := i.configure(values); err != nil {
		return nil, err
	}
	if err := i.rows.register(gadgetCtx, i.settings.Hz); err != nil {
		return nil, fmt.Errorf("registering the data source %q: %w", sourceName, err)
	}
	gadgetCtx.SetVar(stacksVar, &i.rows)
	return i, nil
}

// configure reads the parameters.
func (i *instance) configure(values api.ParamValues) error {
	a, err := readAsked(values)
	if err != nil {
		return err
	}
	hz, err := strconv.ParseUint(values[ParamFrequency], 10, 31)
	if err != nil {
		return fmt.Errorf("parameter %q: %q is no number", ParamFrequency, values[ParamFrequency])
	}
	a.settings.Hz = int(hz)
	if err := a.settings.Check(); err != nil {
		return fmt.Errorf("parameters of the gadget: %w", err)
	}
	i.settings, i.native, i.rows.said = a.settings, a.native, a.sayings
	switch i.text = values[ParamText]; i.text {
	case textAuto, "true", "false":
	default:
		return fmt.Errorf("parameter %q: %q is none of auto, true and false", ParamText, i.text)
	}
	for _, s := range list(values[ParamPID]) {
		pid, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return fmt.Errorf("parameter %q: %q is no PID", ParamPID, s)
		}
		if pid != 0 {
			i.filter.pids = append(i.filter.pids, uint32(pid))
		}
	}
	i.filter.comms = list(values[ParamComm])
	return nil
}
