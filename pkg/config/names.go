package config

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Names holds the settings for reading the names of functions from the files of programs. They belong to
// the process that runs gadgets and not to an exporter: all exporters, and Inspektor Gadget's own output,
// share the names that were read.
type Names struct {
	Memory     int64         // names.memory, in bytes
	Wait       time.Duration // names.wait
	Lines      bool          // names.source_lines
	Debuginfod Debuginfod
}

// Debuginfod says which debuginfod servers debug files are fetched from. Without URLs, none are fetched.
type Debuginfod struct {
	URLs      []string
	Timeout   time.Duration
	Cache     string // a folder
	CacheSize int64  // in bytes
}

// NamesKey is the key in Inspektor Gadget's config below which the settings of Names are.
const NamesKey = "operator.otel-profiles.names"

// NamesEnvPrefix begins the variables that set them: NamesEnvPrefix + <KEY>.
const NamesEnvPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_"

// NameSetting describes one setting of Names: its dotted key below NamesKey, its default as a user would
// write it ("" is empty), and what it does.
type NameSetting struct {
	Key, Default, Doc string
	takes             string
	set               func(*Names, any) error
}

func nameSetting[T any](key, def, takes, doc string, field func(*Names) *T, parse func(any) (T, error)) NameSetting {
	return NameSetting{Key: key, Default: def, Doc: doc, takes: takes, set: func(n *Names, raw any) error {
		v, err := parse(raw)
		if err == nil {
			*field(n) = v
		}
		return err
	}}
}

var nameSettings = []NameSetting{
	nameSetting("memory", "64MiB", "a size of at least 1MiB, such as 64MiB", "Bound of all tables of functions together. Those that were not used for the longest time go.",
		func(n *Names) *int64 { return &n.Memory }, func(raw any) (int64, error) { return parseSize(raw, 1<<20, 1<<40) }),
	nameSetting("wait", "20ms", "a duration of at most 1s, such as 20ms", "How long the text of a stack that is printed waits, at most, for a file that is being read; all stacks of a second together wait five times that. What is exported never waits.",
		func(n *Names) *time.Duration { return &n.Wait }, func(raw any) (time.Duration, error) { return parseDuration(raw, 0, time.Second) }),
	nameSetting("source_lines", "false", "true or false", "Source files, lines and inlined functions from `.debug_info`, where programs have that. It takes much time and memory. Lines of Go programs are there without it.",
		func(n *Names) *bool { return &n.Lines }, parseBool),
	nameSetting("debuginfod.urls", "", "a list of URLs", "Servers that are asked for the debug files of programs without symbols, by build ID. Whoever runs them learns which programs run here.",
		func(n *Names) *[]string { return &n.Debuginfod.URLs }, parseList),
	nameSetting("debuginfod.timeout", "60s", "a duration, such as 60s", "Of one request.",
		func(n *Names) *time.Duration { return &n.Debuginfod.Timeout }, func(raw any) (time.Duration, error) { return parseDuration(raw, time.Second, time.Hour) }),
	nameSetting("debuginfod.cache", "/var/cache/ig-otel-profiles/debuginfod", "a folder", "The folder that fetched files are kept in.",
		func(n *Names) *string { return &n.Debuginfod.Cache }, parseText),
	nameSetting("debuginfod.cache_size", "1GiB", "a size of at least 1MiB, such as 1GiB", "Bound of that folder. What was not used for the longest time goes.",
		func(n *Names) *int64 { return &n.Debuginfod.CacheSize }, func(raw any) (int64, error) { return parseSize(raw, 1<<20, 1<<50) }),
}

// NameSettings returns a copy of the table of all settings of Names.
func NameSettings() []NameSetting { return slices.Clone(nameSettings) }

// LoadNames reads the settings of Names from the file and then from the environment, which wins. A wrong
// value is left out and reported as a *Problem; the setting keeps the value that it had.
func LoadNames(src Sources) (Names, []error) {
	var n Names
	var problems []error
	problem := func(key, where, text string) {
		problems = append(problems, &Problem{Key: key, Where: where, Text: text})
	}
	for _, s := range nameSettings {
		if s.Default != "" {
			_ = s.set(&n, s.Default) // cannot fail: a test parses all defaults
		}
	}
	file := "the config file"
	if src.FileName != "" {
		file = src.FileName
	}
	known := map[string]NameSetting{}
	var keys []string
	for _, s := range nameSettings {
		known[s.Key] = s
		keys = append(keys, s.Key)
	}
	unknown := func(key, where string) {
		problem(key, where, "unknown key: there are "+strings.Join(keys, ", "))
	}
	apply := func(key, at, where string, raw any) {
		s, ok := known[key]
		if !ok {
			unknown(at, where)
			return
		}
		if err := s.set(&n, raw); err != nil {
			problem(at, where, "got "+withoutCredentials(describe(raw))+", takes "+s.takes)
		}
	}
	var walk func(prefix string, body map[string]any)
	walk = func(prefix string, body map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(body)) {
			if below, ok := body[key].(map[string]any); ok {
				walk(prefix+key+".", below)
			} else {
				apply(prefix+key, NamesKey+"."+prefix+key, file, body[key])
			}
		}
	}
	if src.File != nil {
		switch body := src.File.Get(NamesKey).(type) {
		case nil:
		case map[string]any:
			walk("", body)
		default:
			problem(NamesKey, file, "got "+describeKind(body)+", takes a map of settings")
		}
	}
	for _, entry := range src.Environ {
		name, value, _ := strings.Cut(entry, "=")
		key, ok := strings.CutPrefix(name, NamesEnvPrefix)
		if !ok || strings.TrimSpace(value) == "" {
			continue
		}
		i := slices.IndexFunc(keys, func(k string) bool { return envName(k) == key })
		if i < 0 {
			unknown(name, name)
			continue
		}
		apply(keys[i], name, name, value)
	}
	return n, problems
}
