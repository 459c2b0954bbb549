package unwinder

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// Every gadget that supports whole stacks has these parameters. Users set them as flags of ig run and kubectl gadget run.
const (
	ParamLanguages = "languages"
	ParamScale     = "memory-scale"
	ParamSpans     = "spans"
	ParamLabels    = "labels"
	ParamNames     = "native-names"
)

func unwindParams() api.Params {
	return api.Params{
		{
			Key: ParamLanguages, DefaultValue: "all",
			Description: "Languages to unwind: all, or a comma-separated list of beam, dotnet, go, java, lua, native, node, perl, php, python, ruby. Native code is always unwound",
		},
		{
			Key: ParamScale, DefaultValue: "0", TypeHint: api.TypeUint32,
			Description: "Multiply the size of the unwinder's kernel maps by 2^N; N is a number from 0 to 8",
		},
		{
			Key: ParamSpans, DefaultValue: "false", TypeHint: api.TypeBool,
			Description: "Distinguish events by trace span, if the program publishes its spans (Go: the pprof labels trace_id and span_id)",
		},
		{
			Key:         ParamLabels,
			Description: "Comma-separated names of pprof labels of Go programs that distinguish events",
		},
		{
			Key: ParamNames, DefaultValue: "true", TypeHint: api.TypeBool,
			Description: "Find the names of native functions. If false, frames have only file, build ID and address, and a backend can add the names",
		},
	}
}

// asked holds the parsed parameters.
type asked struct {
	settings unwinder.Settings
	native   bool // native functions get names
	sayings
}

// readAsked parses the parameters. Empty parameters get their default values.
func readAsked(given api.ParamValues) (a asked, err error) {
	values := api.ParamValues{}
	for _, p := range unwindParams() {
		values[p.Key] = cmp.Or(given[p.Key], p.DefaultValue)
	}
	yes := func(key string) (v bool) {
		if err == nil {
			if v, err = strconv.ParseBool(values[key]); err != nil {
				err = fmt.Errorf("parameter %q: got %q, expected true or false", key, values[key])
			}
		}
		return v
	}
	a.settings.Spans, a.native = yes(ParamSpans), yes(ParamNames)
	if err != nil {
		return a, err
	}
	scale, err := strconv.ParseUint(values[ParamScale], 10, 31)
	if err != nil {
		return a, fmt.Errorf("parameter %q: got %q, expected a number", ParamScale, values[ParamScale])
	}
	a.settings.Scale = int(scale)
	a.spans, a.labels = a.settings.Spans, fieldmap.SplitList(values[ParamLabels])
	for _, l := range a.labels {
		if strings.ContainsFunc(l, func(c rune) bool { return c <= ' ' || c > '~' || c == '.' || c == '"' }) || len(l) > unwinder.MaxLabelName {
			return a, fmt.Errorf("parameter %q: %q is not a valid label name: use at most %d characters, without spaces or dots", ParamLabels, l, unwinder.MaxLabelName)
		}
	}
	a.settings.Labels = strings.Join(a.labels, ",")
	a.settings.Languages = strings.ReplaceAll(values[ParamLanguages], " ", "")
	if err := a.settings.Check(); err != nil {
		return a, fmt.Errorf("reading the gadget's parameters: %w", err)
	}
	return a, nil
}
