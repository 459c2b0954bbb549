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

	nearPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTER_" // a slip

	otelPrefix         = "OTEL_EXPORTER_OTLP_"
	otelProfilesPrefix = "OTEL_EXPORTER_OTLP_PROFILES_"
	serviceVariable    = "OTEL_SERVICE_NAME"
	resourceVariable   = "OTEL_RESOURCE_ATTRIBUTES"

	sourceEnvironment = "environment"
)

// parseEnviron keeps the last of each variable. An empty one counts as not set
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

// envName is an exporter's name as it stands in a variable.
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

// readNamed takes the variables of named exporters. The exporter's name and the key are joined by
// "_", which both may hold: the name of an exporter that exists goes first, then the longest key.
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

// slip is true for a key of an exporter that nothing else tells of, but whose name begins with that of one that exists:
// PROD_TSL_INSECURE is a slip in PROD's, and no exporter PROD_TSL.
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

// unknownVariable tells the exporter whose name a variable has. Where there is none, nobody could ask for it.
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

// readOTel takes the standard variables for the built-in exporter
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/). A wrong value of those that choose
// how to send is warned about and ignored, as the specification has it; a wrong address or file is an
// error, because what would be left is another receiver or other trust.
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
			// Only "true" is true; everything else is false, with a warning unless it says so.
			insecure := strings.EqualFold(strings.TrimSpace(value), "true")
			if !insecure && !strings.EqualFold(strings.TrimSpace(value), "false") {
				d.warn("%s counts as false: got %s, takes true or false", variable, describe(value))
			}
			v.value = insecure
		}
		d.give(setting, v)
	}
}

// unknownOTel tells about variables for profiles that are not there.
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

// derivedResource are the attributes that every resource gets from what was observed.
var derivedResource = []string{"host.name", "host.arch", "os.type"}

// readGeneral takes the variables that are about the process in which the exporter runs. It profiles
// others: so the service's name is only for what is in no container, and attributes that say who
// somebody is are left out.
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
