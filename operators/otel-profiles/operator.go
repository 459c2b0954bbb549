// Package otelprofiles is the Inspektor Gadget operator otel-profiles. It exports gadget rows that have a stack as OpenTelemetry
// profiles.
//
// Importing the package registers the operator. If a program also imports Inspektor Gadget's own operator of this name, the
// import order decides which one stays registered. Such a program calls Register from main. Any program can check with
// Registered.
//
// All gadget instances of a process share its exporters. An aggregator belongs to one instance and one data source. Inspektor
// Gadget's daemons exit without closing their gadgets, so they must call Shutdown before that.
package otelprofiles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	igconfig "github.com/inspektor-gadget/inspektor-gadget/pkg/config"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/params"
	log "github.com/sirupsen/logrus"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// Name is the operator's name. Its settings are in the section operator.otel-profiles of Inspektor Gadget's config.
const Name = "otel-profiles"

// The operator's parameters, which are flags of ig run and kubectl gadget run.
const (
	// ParamExporter names the exporters: a comma-separated list of names, for all data sources, or of datasource:name.
	ParamExporter = "otel-profiles-exporter"
	// ParamInterval is the batch interval, a duration; empty: the exporter's batch.interval.
	ParamInterval = "otel-profiles-interval"
	// ParamName is the name of the profiles; empty: the gadget's name.
	ParamName = "otel-profiles-name"

	// Parameters for a run without configuration. They exist only if the gadget runs in the caller's own process. A remote caller
	// must not choose where a privileged daemon connects, nor what it sends.
	ParamEndpoint    = "otel-profiles-endpoint"
	ParamInsecure    = "otel-profiles-insecure"
	ParamHeaders     = "otel-profiles-headers"
	ParamCompression = "otel-profiles-compression"
	// ParamCheck is for scripts. The run ends with an error if no row was delivered, or if nearly all rows lack a stack.
	ParamCheck = "otel-profiles-check"
)

const (
	// PreStart runs last, when all other operators have added their fields. Stop runs first, before the eBPF operator's last
	// flush.
	operatorPriority = 9999
	// Rows are read after Inspektor Gadget's filter, sort and limiter, whose priorities are at most 9,600.
	subscribePriority = 9700
)

var localParams = []string{ParamEndpoint, ParamInsecure, ParamHeaders, ParamCompression, ParamCheck}

// imageParams are the parameters that a gadget image's paramDefaults may set.
var imageParams = []string{ParamName, ParamInterval}

// Operator is the data operator. Use the package's registered one. Tests, and programs with more than one, use New.
type Operator struct {
	exporters *exporters
	names     *namers
	contexts  refcount.Value[*proccontext.Resolver]

	mu       sync.Mutex
	file     *viper.Viper
	fileName string
	environ  []string
	live     map[*instance]struct{}
	closing  bool

	sendStored bool
	mistakes   int64 // mistakes in the settings, as reported in the metrics
	failed     error // error of runs with ParamCheck
}

var registered = New()

func init() {
	operators.RegisterDataOperator(registered)
	tune.Observe() // here too, because daemons list the operators before they call Init
}

// New returns an operator that has not been initialized.
func New() *Operator {
	o := &Operator{exporters: newExporters(), live: map[*instance]struct{}{}}
	o.names = newNamers(o.nameSettings)
	return o
}

// Register registers this package's operator. It replaces any operator with the same name.
func Register() { operators.RegisterDataOperator(registered) }

// Registered returns an error if another operator is registered under Name.
func Registered() error {
	if op := operators.GetDataOperators()[Name]; op != operators.DataOperator(registered) {
		return fmt.Errorf("operator %q is %T, not this project's: do not import Inspektor Gadget's pkg/operators/otel-profiles, or call Register after it", Name, op)
	}
	return nil
}

// Shutdown ends the registered operator: see Operator.Shutdown.
func Shutdown(ctx context.Context) error { return registered.Shutdown(ctx) }

// Serve runs a daemon's service for gadgets until ctx ends or the service fails, and returns its error. It sends stored requests
// of an earlier process. At the end it stops the gadgets that export, and waits at most drain for the delivery of their last
// profiles. Keep the clients' connections until it returns.
func Serve(ctx context.Context, drain time.Duration, run func() error) (failure error) {
	SendStored()
	failed := make(chan error, 1)
	go func() { failed <- run() }()
	select {
	case failure = <-failed:
	case <-ctx.Done():
	}
	log.Infof("stopping: delivering the last profiles for at most %s", drain)
	// ctx may have ended, so the remaining work gets its own time limit. After a failed service, gadgets may still run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := Shutdown(ctx); err != nil {
		log.Errorf("delivering the last profiles: %v", err)
	}
	return failure
}

// SendStored is for daemons. It starts the exporters with a storage folder, even without a gadget, now or at the next Init. So
// requests from before a restart are sent.
func SendStored() { registered.SendStored() }

// SendStored is like the function SendStored, for this Operator.
func (o *Operator) SendStored() {
	o.mu.Lock()
	o.sendStored = true
	initialized := o.environ != nil
	o.mu.Unlock()
	if initialized {
		o.startStored()
	}
}

// startStored starts the exporters with a storage folder. It does not wait for files.
func (o *Operator) startStored() {
	set := o.load(nil, true)
	for _, name := range set.Names() {
		cfg, err := set.Exporter(name)
		if err != nil || cfg.Queue.Storage == "" {
			continue // Init has logged the mistake
		}
		s, err := o.exporters.acquire(cfg)
		if err != nil {
			log.Errorf("%s: %v", Name, err)
			continue
		}
		o.exporters.release(s)
	}
}

// Failed returns an error if a run with ParamCheck has failed. Inspektor Gadget ignores errors at the end of a run, so the
// program calls Failed before it exits.
func Failed() error { return registered.Failed() }

// Failed is like the function Failed, for this Operator.
func (o *Operator) Failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// Name implements operators.DataOperator.
func (o *Operator) Name() string { return Name }

// Priority implements operators.DataOperator.
func (o *Operator) Priority() int { return operatorPriority }

// Init reads the current settings. It opens no file and no connection, and never returns an error. An error would end a daemon on
// every node, and cause "unknown flag" in ig run. It logs each mistake once, and gadgets that use the exporter get it as an
// error. It may be called again.
func (o *Operator) Init(*params.Params) error {
	o.mu.Lock()
	o.file, o.fileName = igconfig.Config, ""
	if o.file != nil {
		o.fileName = o.file.ConfigFileUsed()
	}
	o.environ = os.Environ()
	o.closing = false
	sendStored := o.sendStored
	o.mu.Unlock()
	tune.Observe()

	set := o.load(nil, false)
	problems := set.Problems()
	o.mu.Lock()
	change(theInstruments().mistakes, int64(len(problems))-o.mistakes)
	o.mistakes = int64(len(problems))
	o.mu.Unlock()
	o.logOnce(problems)
	if sendStored {
		o.startStored()
	}
	return nil
}

// nameSettings reads the settings for function names. It logs mistakes once.
func (o *Operator) nameSettings() config.Names {
	o.mu.Lock()
	file := o.file
	if file == nil {
		file = igconfig.Config
	}
	src := config.Sources{File: file, FileName: o.fileName, Environ: o.environ}
	if src.Environ == nil {
		src.Environ = os.Environ()
	}
	o.mu.Unlock()
	settings, problems := config.LoadNames(src)
	o.logOnce(problems)
	return settings
}

func (o *Operator) logOnce(problems []error) {
	for _, err := range problems {
		if _, first := o.exporters.logged.Due(err.Error()); first {
			log.Errorf("%s: %v", Name, err)
		}
	}
}

func (o *Operator) load(flags config.Flags, daemon bool) *config.Set {
	o.mu.Lock()
	defer o.mu.Unlock()
	return config.Load(config.Sources{File: o.file, FileName: o.fileName, Environ: o.environ, Flags: flags, Daemon: daemon})
}

// GlobalParams implements operators.DataOperator: there are none.
func (o *Operator) GlobalParams() api.Params { return nil }

// InstanceParams implements operators.DataOperator.
func (o *Operator) InstanceParams() api.Params {
	return api.Params{
		param(ParamExporter, "Profiles exporter", "Comma-separated exporters: names from the configuration, or otlp for a Collector on this machine; datasource:name,... selects one per data source"),
		param(ParamInterval, "Profiles interval", "Time over which samples are summed up before they are sent, such as 10s; if empty, the exporter's batch.interval"),
		param(ParamName, "Profiles name", "Name of the profiles; if empty, the gadget's"),
	}
}

func extraParams() api.Params {
	return api.Params{
		param(ParamEndpoint, "", "Endpoint to use in place of the configured one, such as http://localhost:4317"),
		param(ParamInsecure, "", "Send in plain text: true or false"),
		param(ParamHeaders, "", "Headers of each request: key=value,..."),
		param(ParamCompression, "", "Compression: gzip, zstd or none"),
		param(ParamCheck, "", "For scripts: if true, exit with an error if no row was delivered, or if nearly all rows lack a stack"),
	}
}

func param(key, title, description string) *api.Param {
	return &api.Param{Key: key, Title: title, Description: description, Tags: []string{"group:OpenTelemetry Profiles"}}
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client: only the side that runs the eBPF
// programs exports.
func (o *Operator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if gadgetCtx.IsClient() {
		return nil, nil
	}
	present(gadgetCtx)
	gadgetCtx.SetVar(fieldmap.TablesVar, o.names.tables)
	values = withoutImageDefaults(gadgetCtx, values)
	if gadgetCtx.IsRemoteCall() {
		for _, key := range localParams {
			if values[key] != "" {
				return nil, fmt.Errorf("parameter %q is not accepted from a remote client: configure an exporter in the daemon, and name it with %q", key, ParamExporter)
			}
		}
	}
	to, err := parseTargets(values[ParamExporter])
	if err != nil {
		return nil, err
	}
	inst := &instance{op: o, targets: to, values: values, remote: gadgetCtx.IsRemoteCall()}
	if inst.interval, err = parseInterval(values[ParamInterval], inst.remote); err != nil {
		return nil, err
	}
	if check := values[ParamCheck]; check != "" {
		if inst.mustDeliver, err = strconv.ParseBool(strings.TrimSpace(check)); err != nil {
			return nil, fmt.Errorf("parameter %q: got %q, must be true or false", ParamCheck, check)
		}
	}
	return inst, nil
}

// withoutImageDefaults returns values without those that the image's paramDefaults must not set. Inspektor Gadget passes these
// defaults as if the user had typed them.
func withoutImageDefaults(gadgetCtx operators.GadgetContext, values api.ParamValues) api.ParamValues {
	out := maps.Clone(values)
	metadata := tune.Metadata(gadgetCtx)
	if metadata == nil {
		return out
	}
	for key, def := range metadata.GetStringMapString("paramDefaults") {
		name, ours := strings.CutPrefix(key, "operator."+Name+".")
		if !ours || def == "" {
			continue
		}
		for k, v := range out {
			if !strings.EqualFold(k, name) || v != def {
				continue
			}
			may := "an image may only set " + strings.Join(imageParams, " and ")
			if slices.Contains(imageParams, k) {
				_, err := parseInterval(def, true)
				if k != ParamInterval || err == nil {
					continue
				}
				// The image does not know the receiver's limits.
				may = fmt.Sprintf("an image may set 1s to 1h: %v", err)
			}
			gadgetCtx.Logger().Warnf("%s: the gadget's image sets parameter %q to %q by paramDefaults: ignored, because %s. To use this value, set it with a trailing space: --%s='… '",
				Name, k, def, may, k)
			delete(out, k)
		}
	}
	return out
}

// Shutdown ends all gadgets that export, waits until they are closed and their rows delivered, and stops the exporters. It waits
// for gadgets for at most half of the time in ctx. Without a receiver it returns when ctx ends. Its error says how many rows are
// left; exporters with a storage folder keep them. Later gadgets export nothing until the next Init.
func (o *Operator) Shutdown(ctx context.Context) error {
	o.mu.Lock()
	o.closing = true
	live := make([]*instance, 0, len(o.live))
	for inst := range o.live {
		live = append(live, inst)
	}
	o.mu.Unlock()

	var errs []error
	for _, inst := range live {
		inst.cancel()
	}
	// Leave time to deliver the others' rows if a gadget does not end.
	ending, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		ending, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	defer cancel()
	for _, inst := range live {
		select {
		case <-inst.closed:
		case <-ending.Done():
			// Send its sums so far.
			inst.flush()
			errs = append(errs, fmt.Errorf("gadget %q has not stopped: %w", inst.gadget, ending.Err()))
		}
	}
	errs = append(errs, o.exporters.shutdown(ctx))
	return errors.Join(errs...)
}

func (o *Operator) add(inst *instance) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return errors.New("this process is shutting down")
	}
	o.live[inst] = struct{}{}
	return nil
}

func (o *Operator) remove(inst *instance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.live, inst)
}
