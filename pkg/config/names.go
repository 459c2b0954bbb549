package config

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Names holds the settings for reading function names from programs' files. They belong to the process that runs gadgets, and
// not to an exporter. All exporters and Inspektor Gadget's own output share the names.
type Names struct {
	Memory     int64         // names.memory, in bytes
	Wait       time.Duration // names.wait
	Lines      bool          // names.source_lines
	Debuginfod Debuginfod
}

// Debuginfod holds the settings for servers of debug files. Without URLs, no files are fetched.
type Debuginfod struct {
	URLs      []string
	Timeout   time.Duration
	Cache     string // a folder
	CacheSize int64  // in bytes
}

// NamesKey is the key of these settings in Inspektor Gadget's config.
const NamesKey = operatorKey + ".names"

// NamesEnvPrefix begins the variables of these settings: NamesEnvPrefix + <KEY>.
const NamesEnvPrefix = "INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_NAMES_"

// nameTable holds every setting of Names. Keys are below NamesKey.
var nameTable = []setting{
	size("memory", "64MiB", "128MiB", "The maximum size of all symbol tables together, in bytes. The least recently used tables are removed first. A table is also removed after 10 minutes without use, or after two intervals without use if this is longer.", 1<<20, 1<<40,
		func(n *Names) *int64 { return &n.Memory }).taking("a size of at least 1MiB, such as 64MiB"),
	duration("wait", "20ms", "50ms", "When a stack is printed, the operator waits up to this time for symbols that are still being read. On average, all such waits of a run together take at most 5 times `wait` per second. Rows that are only exported cause no such waits. Instead, the operator waits for missing names at the end of an interval. This wait takes up to a quarter of the interval, and at most 5 s.", 0, time.Second,
		func(n *Names) *time.Duration { return &n.Wait }).taking("a duration of at most 1s, such as 20ms"),
	boolean("source_lines", "false", "Read the names of source files, line numbers and inlined functions from the debug information of programs (section `.debug_info`). Reading this section takes a lot of time and memory. For Go programs, profiles contain source lines and inlined functions even without this setting.",
		func(n *Names) *bool { return &n.Lines }),
	list("debuginfod.urls", `["https://debuginfod.example.com"]`, "Servers that provide debug files by build ID, for programs without symbols. Anyone who runs these servers can see which programs run on this machine.",
		func(n *Names) *[]string { return &n.Debuginfod.URLs }),
	duration("debuginfod.timeout", "60s", "30s", "The time limit for one request to a server.", time.Second, time.Hour,
		func(n *Names) *time.Duration { return &n.Debuginfod.Timeout }),
	text("debuginfod.cache", "/var/cache/ig-otel-profiles/debuginfod", "/var/cache/debuginfod", "The folder for downloaded debug files.",
		func(n *Names) *string { return &n.Debuginfod.Cache }),
	size("debuginfod.cache_size", "1GiB", "256MiB", "The maximum size of the folder `debuginfod.cache`, in bytes. The least recently used files are deleted first.", 1<<20, 1<<50,
		func(n *Names) *int64 { return &n.Debuginfod.CacheSize }).taking("a size of at least 1MiB, such as 1GiB"),
}

// LoadNames reads the settings of Names from the file and the environment. The environment overrides the file. A wrong value is
// reported and ignored, so the setting keeps its earlier value.
func LoadNames(src Sources) (Names, []error) {
	var n Names
	var set Set // collects the problems
	// take sets a setting by its key, or by the key's form in a variable's name. written is the whole name.
	take := func(key, written, where string, raw any) {
		var keys []string
		for _, s := range nameTable {
			keys = append(keys, s.Key)
			if key != s.Key && key != envName(s.Key) {
				continue
			}
			if v, err := s.parse(raw); err != nil {
				set.addError(written, where, "%s", s.explain(err))
			} else {
				s.set(&n, v)
			}
			return
		}
		set.addError(written, where, "unknown key: the valid keys are %s", strings.Join(keys, ", "))
	}
	for _, s := range nameTable {
		take(s.Key, s.Key, "default", s.Default)
	}
	if src.File != nil {
		switch body := src.File.Get(NamesKey).(type) {
		case nil:
		case map[string]any:
			flat := flatten("", body)
			for _, key := range slices.Sorted(maps.Keys(flat)) {
				take(key, NamesKey+"."+key, src.fileName(), flat[key])
			}
		default:
			set.addError(NamesKey, src.fileName(), "got %s, expected a map of settings", describeKind(body))
		}
	}
	env := parseEnviron(src.Environ)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if key, ok := strings.CutPrefix(name, NamesEnvPrefix); ok {
			take(key, name, name, env[name])
		}
	}
	return n, set.Problems()
}
