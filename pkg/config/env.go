package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	// EnvPrefix begins the variables of a named exporter: EnvPrefix + <NAME> + "_" + <KEY>.
	EnvPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_"

	nearPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTER_" // misspelt, and reported

	otelPrefix         = "OTEL_EXPORTER_OTLP_"
	otelProfilesPrefix = "OTEL_EXPORTER_OTLP_PROFILES_"
	serviceVariable    = "OTEL_SERVICE_NAME"
	resourceVariable   = "OTEL_RESOURCE_ATTRIBUTES"

	sourceEnvironment = "environment"
)

// parseEnviron picks the variables that this package reads. Of one that is there twice the last counts,
// and an empty one counts as not set
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/#parsing-empty-value).
func parseEnviron(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !hasPrefix(name, "OTEL_", EnvPrefix, nearPrefix) {
			continue
		}
		delete(env, name)
		if strings.TrimSpace(value) != "" {
			env[name] = value
		}
	}
	return env
}

// envName returns an exporter's name, or a setting's key, as it is written in the name of a variable.
func envName(name string) string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

func (s *Set) readEnviron(env map[string]string) {
	s.readNamed(env)
	if env[otelPrefix+"ENDPOINT"] != "" || env[otelProfilesPrefix+"ENDPOINT"] != "" {
		s.draft(BuiltIn, sourceEnvironment)
	}
	if d := s.drafts[BuiltIn]; d != nil {
		d.readOTel(env, otelPrefix, fromOTel)
		d.readOTel(env, otelProfilesPrefix, fromOTelProfiles)
		d.unknownOTel(env)
	}
	s.readGeneral(env)
}

// readNamed reads the variables of named exporters, <EnvPrefix><NAME>_<KEY>. Names and keys may contain
// "_" themselves, so there can be several ways to cut: one with the name of an exporter that exists is
// preferred, and then one with the longest key.
func (s *Set) readNamed(env map[string]string) {
	byEnvName := map[string][]string{envName(BuiltIn): nil}
	for _, name := range s.Names() {
		byEnvName[envName(name)] = append(byEnvName[envName(name)], name)
	}
	longestFirst := func(a, b string) int { return len(b) - len(a) }
	known := slices.SortedFunc(maps.Keys(byEnvName), longestFirst)
	suffixes := make(map[string]*Setting, len(table))
	for i := range table {
		suffixes[table[i].EnvSuffix()] = &table[i]
	}
	keys := slices.SortedStableFunc(slices.Values(slices.Sorted(maps.Keys(suffixes))), longestFirst)

	for _, variable := range slices.Sorted(maps.Keys(env)) {
		if after, ok := strings.CutPrefix(variable, nearPrefix); ok {
			s.problems = append(s.problems, &Problem{Key: variable, Text: "unknown variable; the nearest one is " + EnvPrefix + after})
			continue
		}
		rest, ok := strings.CutPrefix(variable, EnvPrefix)
		if !ok {
			continue
		}
		name, setting := "", (*Setting)(nil)
		for _, candidate := range known {
			if key, ok := strings.CutPrefix(rest, candidate+"_"); ok {
				if setting = suffixes[key]; setting != nil {
					name = candidate
					break
				}
			}
		}
		if setting == nil {
			for _, key := range keys {
				if before, ok := strings.CutSuffix(rest, "_"+key); ok && before != "" {
					name, setting = before, suffixes[key]
					break
				}
			}
		}
		if setting == nil || !slices.Contains(known, name) && slip(env, name, known) {
			s.unknownVariable(variable, rest, known, byEnvName)
			continue
		}
		names := byEnvName[name]
		if len(names) == 0 {
			names = []string{strings.ToLower(name)}
		}
		for _, exporter := range names {
			d := s.draft(exporter, sourceEnvironment)
			if len(names) > 1 {
				d.problem(setting.Key, variable, "the variable would set each of %s: rename all but one", strings.Join(names, ", "))
				continue
			}
			d.give(setting, given{value: env[variable], layer: fromEnv, origin: variable})
		}
	}
}

// slip reports whether name comes from a misspelt key of an exporter that exists. PROD_TSL_INSECURE can be
// read as the key INSECURE of an exporter PROD_TSL; if nothing defines such an exporter, and PROD exists,
// it is meant to be PROD_TLS_INSECURE.
func slip(env map[string]string, name string, known []string) bool {
	for _, key := range definingKeys {
		if env[EnvPrefix+name+"_"+strings.ToUpper(key)] != "" {
			return false
		}
	}
	return slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(name, k+"_") })
}

func envSuffixes() []string {
	out := make([]string, 0, len(table))
	for i := range table {
		out = append(out, table[i].EnvSuffix())
	}
	return out
}

// unknownVariable reports a variable that sets nothing. It is a problem of the exporter that its name
// begins with, or of the whole Set if there is no such exporter.
func (s *Set) unknownVariable(variable, rest string, known []string, byEnvName map[string][]string) {
	for _, name := range known {
		key, ok := strings.CutPrefix(rest, name+"_")
		if !ok {
			continue
		}
		for _, exporter := range append(byEnvName[name], BuiltIn)[:max(len(byEnvName[name]), 1)] {
			if d := s.drafts[exporter]; d != nil {
				text := "unknown variable; " + oneOf(EnvPrefix+name+"_", key, "an exporter", envSuffixes())
				d.problems = append(d.problems, &Problem{Exporter: exporter, Key: variable, Text: text})
				return
			}
		}
	}
	s.problems = append(s.problems, &Problem{Key: variable, Text: "unknown variable; it takes the form " + EnvPrefix + "<NAME>_<KEY>, such as " + EnvPrefix + "PROD_ENDPOINT"})
}

// readOTel reads the standard variables for the built-in exporter
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/). As the specification demands, a wrong
// value is ignored with a warning, except for the endpoint and the certificates: without them, rows
// would go to another receiver, or to one that is verified by other certificates. There it is an error.
func (d *draft) readOTel(env map[string]string, prefix string, from layer) {
	d.readProtocol(env, prefix, from)
	for i := range table {
		setting := &table[i]
		if setting.OTel == "" || setting.OTel == "PROTOCOL" {
			continue
		}
		variable := prefix + setting.OTel
		value, ok := env[variable]
		if !ok {
			continue
		}
		v := given{value: value, layer: from, origin: variable, soft: true}
		switch setting.OTel {
		case "ENDPOINT", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY":
			v.soft = false
		case "TIMEOUT":
			ms, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31)
			if err != nil {
				d.ignored(variable, "got %s, takes a whole number of milliseconds", describe(value))
				continue
			}
			v.value = fmt.Sprintf("%dms", ms)
		case "HEADERS":
			kvs, err := parseBaggage(value)
			if err != nil {
				d.ignored(variable, "got %v, takes key=value with commas between them, values percent-encoded", err)
				continue
			}
			v.value = kvs
		case "INSECURE":
			// By the specification only "true" is true. What is neither "true" nor "false" gets a warning.
			insecure := strings.EqualFold(strings.TrimSpace(value), "true")
			if !insecure && !strings.EqualFold(strings.TrimSpace(value), "false") {
				d.warn("%s counts as false: got %s, takes true or false", variable, describe(value))
			}
			v.value = insecure
		}
		d.give(setting, v)
	}
}

// unknownOTel warns about variables that begin with OTEL_EXPORTER_OTLP_PROFILES_ and do not exist.
func (d *draft) unknownOTel(env map[string]string) {
	var known []string
	for i := range table {
		if table[i].OTel != "" {
			known = append(known, table[i].OTel)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		suffix, ok := strings.CutPrefix(variable, otelProfilesPrefix)
		if !ok || slices.Contains(known, suffix) {
			continue
		}
		d.warn("%s is ignored: unknown variable; %s", variable, oneOf(otelProfilesPrefix, suffix, otelProfilesPrefix, known))
	}
}

func (d *draft) readProtocol(env map[string]string, prefix string, from layer) {
	variable := prefix + "PROTOCOL"
	value, ok := env[variable]
	if !ok {
		return
	}
	give := func(key, value string) {
		d.give(byKey[key], given{value: value, layer: from, origin: variable})
	}
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "grpc":
		give("exporter", TransportGRPC)
	case "http/protobuf":
		give("exporter", TransportHTTP)
		give("encoding", "proto")
	case "http/json":
		give("exporter", TransportHTTP)
		give("encoding", "json")
	default:
		d.ignored(variable, "got %s, takes one of grpc, http/protobuf, http/json", describe(value))
	}
}

func (d *draft) ignored(variable, format string, args ...any) {
	d.warn("%s is ignored: "+format, append([]any{variable}, args...)...)
}

// derivedResource are attributes that the exporter finds out itself, for every resource.
var derivedResource = []string{"host.name", "host.arch", "os.type"}

// readGeneral reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. They describe the process in which
// the exporter runs, but the profiles are of other processes. So the service's name is used only for
// what runs in no container, and attributes that identify a workload or a host are left out.
func (s *Set) readGeneral(env map[string]string) {
	service, origin := env[serviceVariable], serviceVariable
	var attributes []KeyValue
	if text, ok := env[resourceVariable]; ok {
		kvs, err := parseBaggage(text)
		if err != nil {
			s.notices = append(s.notices, fmt.Sprintf("%s is ignored: got %v, takes key=value with commas between them, values percent-encoded", resourceVariable, err))
		}
		var left []string
		for _, kv := range kvs {
			switch {
			case kv.Key == "service.name":
				if service == "" {
					service, origin = kv.Value, resourceVariable
				}
			case hasPrefix(kv.Key, "service.", "k8s.", "container."), slices.Contains(derivedResource, kv.Key):
				left = append(left, line(clip(kv.Key)))
			case !wellFormed(kv.Key):
				left = append(left, strconv.Quote(clip(kv.Key)))
			default:
				attributes = append(attributes, kv)
			}
		}
		if len(left) > 0 {
			s.notices = append(s.notices, fmt.Sprintf("%s: left out %s: they say which workload or host was profiled, and come from what is observed", resourceVariable, strings.Join(left, ", ")))
		}
	}
	for _, d := range s.drafts {
		if service != "" {
			d.give(byKey["host_service_name"], given{value: service, layer: fromGeneral, origin: origin})
		}
		d.resourceGaps = attributes
	}
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
