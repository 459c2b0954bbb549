package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

const (
	// EnvPrefix begins the variables of a named exporter: EnvPrefix + <NAME> + "_" + <KEY>.
	EnvPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_"

	nearPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTER_" // a misspelling, which is reported

	otelPrefix         = "OTEL_EXPORTER_OTLP_"
	otelProfilesPrefix = "OTEL_EXPORTER_OTLP_PROFILES_"
	serviceVariable    = "OTEL_SERVICE_NAME"
	resourceVariable   = "OTEL_RESOURCE_ATTRIBUTES"

	sourceEnvironment = "environment"
)

// parseEnviron selects the variables that this package reads. The last value of a repeated variable wins. An empty variable
// counts as not set (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/#parsing-empty-value).
func parseEnviron(environ []string) map[string]string {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || !hasPrefix(name, "OTEL_", EnvPrefix, nearPrefix, NamesEnvPrefix) {
			continue
		}
		delete(env, name)
		if strings.TrimSpace(value) != "" {
			env[name] = value
		}
	}
	return env
}

// envName converts an exporter's name or a setting's key for use in a variable's name.
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

// readNamed reads the variables of named exporters, <EnvPrefix><NAME>_<KEY>.
func (s *Set) readNamed(env map[string]string) {
	exporters := map[string][]string{envName(BuiltIn): {BuiltIn}} // names by their form in variables
	for _, name := range s.Names() {
		if name != BuiltIn {
			exporters[envName(name)] = append(exporters[envName(name)], name)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		if after, ok := strings.CutPrefix(variable, nearPrefix); ok {
			s.addError(variable, "", "unknown variable; the closest match is %s", EnvPrefix+after)
		}
		rest, ok := strings.CutPrefix(variable, EnvPrefix)
		if !ok {
			continue
		}
		name, key := cutVariable(rest, exporters)
		owners := exporters[name]
		if key == nil || owners == nil && slip(env, name, exporters) {
			s.unknownVariable(variable, rest, exporters)
			continue
		}
		if owners == nil {
			owners = []string{strings.ToLower(name)}
		}
		for _, owner := range owners {
			d := s.draft(owner, sourceEnvironment)
			if len(owners) > 1 {
				d.addError(key.Key, variable, "the variable matches several exporters: %s: rename all but one", strings.Join(owners, ", "))
				continue
			}
			d.give(key, fromEnv, variable, env[variable])
		}
	}
}

// cutVariable splits <NAME>_<KEY>. Both parts can contain "_", so there can be several splits. The longest name of an existing
// exporter wins, otherwise the longest key.
func cutVariable(rest string, exporters map[string][]string) (name string, key *setting) {
	for i := range table {
		before, ok := strings.CutSuffix(rest, "_"+envName(table[i].Key))
		if !ok || before == "" {
			continue
		}
		exists, existed := exporters[before] != nil, exporters[name] != nil
		longer := len(before) > len(name) // a longer name leaves a shorter key
		if key == nil || exists && !existed || exists == existed && longer == exists {
			name, key = before, &table[i]
		}
	}
	return name, key
}

// slip reports whether name results from a misspelt key of an existing exporter. For example, PROD_TSL_INSECURE can be the key
// INSECURE of the exporter PROD_TSL. If only PROD exists, the variable is a misspelt PROD_TLS_INSECURE.
func slip(env map[string]string, name string, exporters map[string][]string) bool {
	defined := slices.ContainsFunc(definingKeys, func(key string) bool { return env[EnvPrefix+name+"_"+envName(key)] != "" })
	return !defined && ownerOf(name, exporters) != ""
}

// ownerOf returns the longest exporter name that rest begins with, or "". rest is a variable's name without EnvPrefix.
func ownerOf(rest string, exporters map[string][]string) (owner string) {
	for name := range exporters {
		if strings.HasPrefix(rest, name+"_") && len(name) > len(owner) {
			owner = name
		}
	}
	return owner
}

func envSuffixes() []string {
	out := make([]string, len(table))
	for i := range table {
		out[i] = envName(table[i].Key)
	}
	return out
}

// unknownVariable reports a variable that sets nothing. If the variable begins with an exporter's name, the problem belongs to
// this exporter. Otherwise, it belongs to the Set.
func (s *Set) unknownVariable(variable, rest string, exporters map[string][]string) {
	owner := ownerOf(rest, exporters)
	for _, name := range exporters[owner] {
		if d := s.drafts[name]; d != nil {
			key := strings.TrimPrefix(rest, owner+"_")
			d.addError(variable, "", "unknown variable; %s", oneOf(EnvPrefix+owner+"_", key, "an exporter", envSuffixes()))
			return
		}
	}
	s.addError(variable, "", "unknown variable; the form is %[1]s<NAME>_<KEY>, such as %[1]sPROD_ENDPOINT", EnvPrefix)
}

// readOTel reads the standard variables for the built-in exporter
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
func (d *draft) readOTel(env map[string]string, prefix string, from layer) {
	for i := range table {
		s := &table[i]
		variable := prefix + s.OTel
		value, ok := env[variable]
		if s.OTel == "" || !ok {
			continue
		}
		raw, err := d.fromStandard(s.Key, variable, value)
		switch {
		case err != nil:
			d.addWarning("%s is ignored: %v", variable, err)
		case raw != nil:
			d.give(s, from, variable, raw)
		}
	}
}

// protocols maps values of OTEL_EXPORTER_OTLP_PROTOCOL to exporter and encoding.
var protocols = map[string][2]string{
	"grpc": {TransportGRPC}, "http/protobuf": {TransportHTTP, "proto"}, "http/json": {TransportHTTP, "json"},
}

// fromStandard converts the value of a standard variable into the setting's value. nil means that the variable does not set it.
func (d *draft) fromStandard(key, variable, value string) (any, error) {
	text := strings.ToLower(strings.TrimSpace(value))
	switch key {
	case "exporter":
		if protocol, ok := protocols[text]; ok {
			return protocol[0], nil
		}
		return nil, fmt.Errorf("got %s, expected one of grpc, http/protobuf, http/json", describe(value))
	case "encoding": // from the same variable as "exporter", which reports wrong values
		if encoding := protocols[text][1]; encoding != "" {
			return encoding, nil
		}
		return nil, nil
	case "timeout":
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("got %s, expected a whole number of milliseconds", describe(value))
		}
		return fmt.Sprintf("%dms", ms), nil
	case "headers":
		return parseBaggage(value)
	case "insecure":
		// By the specification, only "true" is true. Values other than "true" and "false" get a warning.
		if text != "true" && text != "false" {
			d.addWarning("%s counts as false: got %s, expected true or false", variable, describe(value))
		}
		return text == "true", nil
	}
	return value, nil
}

// unknownOTel warns about unknown variables that begin with OTEL_EXPORTER_OTLP_PROFILES_.
func (d *draft) unknownOTel(env map[string]string) {
	var known []string
	for i := range table {
		if table[i].OTel != "" {
			known = append(known, table[i].OTel)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		suffix, ok := strings.CutPrefix(variable, otelProfilesPrefix)
		if ok && !slices.Contains(known, suffix) {
			d.addWarning("%s is ignored: unknown variable; %s", variable, oneOf(otelProfilesPrefix, suffix, otelProfilesPrefix, known))
		}
	}
}

// derivedResource lists the attributes that the exporter derives for every resource.
var derivedResource = []string{"host.name", "host.arch", "os.type"}

// readGeneral reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. They describe the exporter's own process, but profiles are
// about other processes. So the service name only applies outside containers. Attributes that identify a workload or host are
// dropped.
func (s *Set) readGeneral(env map[string]string) {
	service, origin := env[serviceVariable], serviceVariable
	kvs, err := parseBaggage(env[resourceVariable])
	if err != nil {
		s.notices = append(s.notices, fmt.Sprintf("%s is ignored: %v", resourceVariable, err))
	}
	var attributes []KeyValue
	var left []string
	for _, kv := range kvs {
		switch {
		case kv.Key == "service.name":
			if service == "" {
				service, origin = kv.Value, resourceVariable
			}
		case hasPrefix(kv.Key, "service.", "k8s.", "container."), slices.Contains(derivedResource, kv.Key):
			left = append(left, printable.Clean(clip(kv.Key)))
		case !wellFormed(kv.Key):
			s.notices = append(s.notices, fmt.Sprintf("%s: ignoring %s: expected names of at most 255 bytes without spaces", resourceVariable, printable.Clean(clip(kv.Key))))
		default:
			attributes = append(attributes, kv)
		}
	}
	if len(left) > 0 {
		s.notices = append(s.notices, fmt.Sprintf("%s: ignoring %s: these attributes identify the profiled workload or host, and cannot be set", resourceVariable, strings.Join(left, ", ")))
	}
	for _, d := range s.drafts {
		if service != "" {
			d.give(byKey["host_service_name"], fromGeneral, origin, service)
		}
		if attributes != nil {
			d.give(byKey["resource"], fromPreset, resourceVariable, attributes)
		}
	}
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
