// Package otelprofiles is the Inspektor Gadget operator otel-profiles. It exports gadget rows that contain a stack as
// OpenTelemetry profiles.
//
// Importing the package registers the operator. Inspektor Gadget's own operator has the same name. If a program imports both,
// the import order decides which operator stays registered. Such a program must call Register from main. Any program can call
// Registered to check which operator is registered.
//
// All gadget instances in a process share its exporters. An aggregator belongs to one instance and one data source. Inspektor
// Gadget's daemons exit without closing their gadgets, so they must call Shutdown before they exit.
package otelprofiles

import (
	"cmp"
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

// Users set these parameters as flags of ig run and kubectl gadget run.
const (
	// ParamExporter is a comma-separated list of exporters. An item is either a name, for all data sources, or datasource:name.
	ParamExporter = "otel-profiles-exporter"
	// ParamInterval is the batch interval, a duration. If it is empty, the exporter's batch.interval applies.
	ParamInterval = "otel-profiles-interval"
	// ParamName is the profiles' name. If it is empty, the annotation profiles.name applies, or else the data source's name.
	ParamName = "otel-profiles-name"

	// These parameters replace a configuration file. They exist only if the gadget runs in the caller's own process. A remote
	// caller must not choose where a privileged daemon connects or what it sends.
	ParamEndpoint    = "otel-profiles-endpoint"
	ParamInsecure    = "otel-profiles-insecure"
	ParamHeaders     = "otel-profiles-headers"
	ParamCompression = "otel-profiles-compression"
	// ParamCheck is for scripts. The run ends with an error if no row was delivered, or if nearly all rows lack a stack.
	ParamCheck = "otel-profiles-check"
)

const (
	// With this priority, PreStart runs last, when all other operators have added their fields. Stop runs first, before the eBPF
	// operator's last flush.
	operatorPriority = 9999
	// Rows are read after Inspektor Gadget's filter, sort and limiter, whose priorities are at most 9,600.
	subscribePriority = 9700
)

var localParams = []string{ParamEndpoint, ParamInsecure, ParamHeaders, ParamCompression, ParamCheck}

// imageParams lists the parameters that a gadget image can set in paramDefaults.
var imageParams = []string{ParamName, ParamInterval}

// Operator is the data operator. Most programs use the operator that the package registers. Tests, and programs with several
// operators, use New.
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
	failed     error // error from a run with ParamCheck
}

var registered = New()

func init() {
	operators.RegisterDataOperator(registered)
	tune.Observe() // also called here, because daemons list the operators before they call Init
}

// New returns an operator that has not been initialized.
func New() *Operator {
	o := &Operator{exporters: &exporters{}, live: map[*instance]struct{}{}}
	o.names = newNamers(o.nameSettings)
	return o
}

// Register registers this package's operator. It replaces any operator with the same name.
func Register() { operators.RegisterDataOperator(registered) }

// Registered returns an error if another operator is registered under Name.
func Registered() error {
	if op := operators.GetDataOperators()[Name]; op != operators.DataOperator(registered) {
		return fmt.Errorf("operator %q is registered as %T instead of this project's operator: remove the import of Inspektor Gadget's pkg/operators/otel-profiles, or call Register last", Name, op)
	}
	return nil
}

// Shutdown ends the registered operator: see Operator.Shutdown.
func Shutdown(ctx context.Context) error { return registered.Shutdown(ctx) }

// Serve runs a daemon's gadget service until ctx ends or the service fails, and returns the service's error. It sends stored
// requests from an earlier process. At the end, it stops the gadgets that export. It then waits at most drain until their last
// profiles are delivered. Keep the clients' connections open until Serve returns.
func Serve(ctx context.Context, drain time.Duration, run func() error) (failure error) {
	registered.SendStored()
	failed := make(chan error, 1)
	go func() { failed <- run() }()
	select {
	case failure = <-failed:
	case <-ctx.Done():
	}
	log.Infof("stopping: delivering the last profiles for at most %s", drain)
	// ctx can have ended, so the remaining work gets its own time limit. After the service fails, gadgets can still run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := Shutdown(ctx); err != nil {
		log.Errorf("delivering the last profiles: %v", err)
	}
	return failure
}

// SendStored is for daemons. It starts all exporters with a storage folder, even without a gadget, now or at the next Init.
// Requests from before a restart are then sent. Serve calls it.
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
		o.exporters.release(o.exporters.acquire(cfg))
	}
}

// Failed returns an error if a run with ParamCheck has failed. Inspektor Gadget ignores errors at the end of a run, so a program
// must call Failed before it exits.
func Failed() error { return registered.Failed() }

// Failed does the same as the function Failed, but for this Operator.
func (o *Operator) Failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// Name implements operators.DataOperator.
func (o *Operator) Name() string { return Name }

// Priority implements operators.DataOperator.
func (o *Operator) Priority() int { return operatorPriority }

// Init reads the current settings. It opens no files or connections, and never returns an error. An error would end the daemon
// on every node, and ig run would report "unknown flag". Init logs each mistake once. Gadgets that use the exporter get the
// mistake as an error. Init can be called again.
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

// nameSettings reads the settings for function names. It logs each mistake once.
func (o *Operator) nameSettings() config.Names {
	o.mu.Lock()
	src := config.Sources{File: cmp.Or(o.file, igconfig.Config), FileName: o.fileName, Environ: o.environ}
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
		param(ParamExporter, "Profiles exporter", "Comma-separated names of exporters in the configuration, or otlp for a Collector on this machine. datasource:name,... selects an exporter for each data source"),
		param(ParamInterval, "Profiles interval", "Time over which samples are summed up before they are sent, such as 10s. Default: batch.interval of the exporter"),
		param(ParamName, "Profiles name", "Name of the profiles. Default: the name that the gadget gives its profiles"),
	}
}

func extraParams() api.Params {
	return api.Params{
		param(ParamEndpoint, "", "Endpoint that replaces the configured one, such as http://localhost:4317"),
		param(ParamInsecure, "", "Send in plain text: true or false"),
		param(ParamHeaders, "", "Headers of each request: key=value,..."),
		param(ParamCompression, "", "Compression: gzip, zstd or none"),
		param(ParamCheck, "", "For scripts: if true, exit with an error if no row was delivered, or if nearly all rows lack a stack"),
	}
}

func param(key, title, description string) *api.Param {
	return &api.Param{Key: key, Title: title, Description: description, Tags: []string{"group:OpenTelemetry Profiles"}}
}

// InstantiateDataOperator implements operators.DataOperator. It returns nil on a client, because only the process that runs the
// eBPF programs exports.
func (o *Operator) InstantiateDataOperator(gadgetCtx operators.GadgetContext, values api.ParamValues) (operators.DataOperatorInstance, error) {
	if gadgetCtx.IsClient() {
		return nil, nil
	}
	for _, ds := range gadgetCtx.GetDataSources() {
		fieldmap.Present(ds)
	}
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
			return nil, fmt.Errorf("parameter %q: got %q, expected true or false", ParamCheck, check)
		}
	}
	return inst, nil
}

// withoutImageDefaults removes from values the parameters that the image's paramDefaults must not set. Inspektor Gadget passes
// these defaults as if the user had set them.
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
				may = fmt.Sprintf("an image may only set 1s to 1h: %v", err)
			}
			gadgetCtx.Logger().Warnf("%s: ignoring parameter %q with the value %q from paramDefaults of the gadget's image, because %s. To use this value, set the flag yourself, and add a space to distinguish it from the image's value: --%s='… '",
				Name, k, def, may, k)
			delete(out, k)
		}
	}
	return out
}

// Shutdown ends all gadgets that export, waits until they are closed and their rows are delivered, and stops the exporters. It
// waits for gadgets for at most half of the time in ctx. Without a receiver, Shutdown returns when ctx ends. The error states how
// many rows were not delivered. Exporters with a storage folder keep these rows. Later gadgets export nothing until the next
// Init.
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
	// If a gadget does not end, leave time to deliver the other gadgets' rows.
	ending, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		ending, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	defer cancel()
	for _, inst := range live {
		select {
		case <-inst.closed:
		case <-ending.Done():
			// Send the gadget's current sums.
			inst.flush()
			errs = append(errs, fmt.Errorf("gadget %q did not stop in time: %w", inst.gadget, ending.Err()))
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
