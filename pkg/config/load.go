package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// BuiltIn is the name of the exporter that needs no file. It sends to a Collector on this machine, or to the receiver in the
// standard variables.
const BuiltIn = "otlp"

// Sources are the sources of settings.
type Sources struct {
	File     *viper.Viper // Inspektor Gadget's config with the exporters below FileKey, or nil
	FileName string       // name of the config file, shown in messages
	Environ  []string     // as os.Environ returns it
	Flags    Flags        // of this run; nil in daemons and for remote calls
	// Daemon is set in a process that serves others. There, the built-in exporter exists only if the file or the environment
	// names it.
	Daemon bool
}

// fileName returns the config file's name for messages.
func (src Sources) fileName() string { return cmp.Or(src.FileName, "the config file") }

// Flags maps the names of command line flags to their raw texts. setting.Flag is such a name. "" means that the flag was not
// given. Flags apply to each exporter that a run names.
type Flags map[string]Secret

// A layer is a source of values. Stronger layers have higher numbers.
type layer int

const (
	fromDefault      layer = iota
	fromPreset             // also OTEL_RESOURCE_ATTRIBUTES, which fills gaps like a preset
	fromFile               // Inspektor Gadget's config
	fromFlag               // the command line
	fromGeneral            // OTEL_SERVICE_NAME
	fromOTel               // OTEL_EXPORTER_OTLP_…
	fromOTelProfiles       // OTEL_EXPORTER_OTLP_PROFILES_…
	fromEnv                // INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_<NAME>_…
)

// A given value is the value of one setting in one source.
type given struct {
	layer  layer
	origin string // a file, a flag or a variable, for messages; "" for a default
	key    string // as it was written, so an alias keeps its own spelling
	raw    any    // value as the source provides it
	value  any    // parsed value
	err    error  // error from parsing raw
}

// A draft is an exporter whose settings are still being read.
type draft struct {
	Exporter
	given    map[string][]given // values by setting
	problems []problem
	notices  []string
	// unreadable is set if a value could not be parsed. Then checks that depend on it are skipped.
	unreadable bool
}

// Set holds all exporters of a process. It is immutable and safe for concurrent use.
type Set struct {
	drafts   map[string]*draft
	problems []problem // problems that belong to no exporter
	notices  []string
	// emptyFile is the name of the config file if it has no exporter.
	emptyFile string
}

// Load reads the settings of all exporters. It never fails: a mistake becomes an error of its exporter, which Exporter and
// Problems return.
func Load(src Sources) *Set {
	set := &Set{drafts: map[string]*draft{}}
	if !src.Daemon {
		set.draft(BuiltIn, "built in")
	}
	set.readFile(src.File, src.fileName())
	set.readEnviron(parseEnviron(src.Environ))
	for _, d := range set.drafts {
		for i := range table {
			if value := src.Flags[table[i].Flag]; value != "" {
				d.give(&table[i], fromFlag, "--"+table[i].Flag, string(value))
			}
		}
		d.resolve()
		if !d.unreadable {
			d.validate()
		}
	}
	set.sharedFolders()
	return set
}

// sharedFolders refuses exporters with the same folder. After a restart, one of them would send the requests of the other.
func (s *Set) sharedFolders() {
	owner := map[string]string{}
	for _, name := range s.Names() {
		d := s.drafts[name]
		if d.Queue.Storage == "" {
			continue
		}
		folder := filepath.Clean(d.Queue.Storage)
		if first, taken := owner[folder]; taken {
			d.addValueError("sending_queue.storage", "got %q, the folder of exporter %q: each exporter needs its own folder", d.Queue.Storage, first)
			continue
		}
		owner[folder] = d.Name
	}
}

// draft returns the exporter of that name, and creates it if necessary.
func (s *Set) draft(name, source string) *draft {
	key := strings.ToLower(name)
	d := s.drafts[key]
	if d == nil {
		d = &draft{Exporter: Exporter{Name: name, Source: source}, given: map[string][]given{}}
		for i := range table {
			if table[i].alias == "" {
				d.give(&table[i], fromDefault, "", table[i].Default)
			}
		}
		s.drafts[key] = d
	}
	return d
}

// Names returns the sorted names of all exporters, including wrong ones.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.drafts)) }

// Exporter returns the exporter of that name, ignoring case. The error names the mistake. For an unknown name it lists the
// known names.
func (s *Set) Exporter(name string) (Exporter, error) {
	d := s.find(name)
	if d == nil {
		return Exporter{}, s.unknown(name)
	}
	if len(d.problems) == 0 {
		return d.Exporter, nil
	}
	texts := make([]string, len(d.problems))
	for i, p := range d.problems {
		texts[i] = p.text
	}
	return Exporter{}, fmt.Errorf("exporter %q: %s", d.Name, strings.Join(texts, "; "))
}

// find returns the draft of an exporter. For an exporter in the environment, it accepts any name that results in the same
// variables.
func (s *Set) find(name string) *draft {
	if d := s.drafts[strings.ToLower(name)]; d != nil {
		return d
	}
	for _, key := range s.Names() {
		if d := s.drafts[key]; d.Source == sourceEnvironment && envName(key) == envName(name) {
			return d
		}
	}
	return nil
}

func (s *Set) unknown(name string) error {
	names := s.Names()
	if len(names) == 0 {
		return fmt.Errorf("unknown exporter %q: none is configured; add one under %s in the config, or set %sENDPOINT for %q", clip(name), FileKey, otelPrefix, BuiltIn)
	}
	hint := ""
	if strings.EqualFold(name, BuiltIn) {
		hint = "; in a daemon, " + BuiltIn + " exists only if the daemon's config or environment names it"
	}
	if s.emptyFile != "" {
		hint += "; " + s.emptyFile + " has none under " + FileKey + ", or is not valid YAML"
	}
	return fmt.Errorf("unknown exporter %q: the known exporters are %s", clip(name), printable.Clean(strings.Join(names, ", ")+hint))
}

// Problems returns all mistakes. Each names the exporter, the key, the given value and the valid values, and contains no
// secret. A wrong flag is one mistake, although it sets several exporters.
func (s *Set) Problems() []error {
	var all []error
	seen := map[string]bool{}
	for _, name := range s.Names() {
		for _, p := range s.drafts[name].problems {
			if !seen[p.where] {
				all = append(all, fmt.Errorf("exporter %q: %s", s.drafts[name].Name, p.text))
			}
			seen[p.where] = strings.HasPrefix(p.where, "--")
		}
	}
	for _, p := range s.problems {
		all = append(all, errors.New(p.text))
	}
	return all
}

// NoticesFor returns the warnings for one exporter and for all exporters. They contain no secret.
func (s *Set) NoticesFor(name string) []string {
	all := slices.Clone(s.notices)
	if d := s.find(name); d != nil {
		all = append(all, d.notices...)
	}
	return all
}

// A problem is one mistake in the settings.
type problem struct {
	where string // source of the setting, shown in messages
	text  string // has the key, the given value, the valid values and the remedy
}

// problemf makes a problem. If key is a variable or flag, it is itself the source, and where is empty or equal to key. Names of
// exporters, keys and variables can contain any characters, so the text is cleaned.
func problemf(key, where, format string, args ...any) problem {
	if where != "" && where != key {
		key += " (" + where + ")"
	}
	return problem{where, printable.Clean(key + ": " + fmt.Sprintf(format, args...))}
}

func (s *Set) addError(key, where, format string, args ...any) {
	s.problems = append(s.problems, problemf(key, where, format, args...))
}

func (d *draft) addError(key, where, format string, args ...any) {
	d.problems = append(d.problems, problemf(key, where, format, args...))
}

// addValueError adds an error that includes the setting's value.
func (d *draft) addValueError(key, format string, args ...any) {
	d.addError(key, d.where(key), format, args...)
}

// where returns the source of a setting's value, or the exporter's source if the setting is not set.
func (d *draft) where(key string) string { return cmp.Or(d.strongest(key).origin, d.Source) }

func (d *draft) addNotice(key, format string, args ...any) {
	d.addWarning("%s: "+format, append([]any{key}, args...)...)
}

// addWarning adds a notice without a key.
func (d *draft) addWarning(format string, args ...any) {
	d.notices = append(d.notices, printable.Clean(fmt.Sprintf("exporter %q: ", d.Name)+fmt.Sprintf(format, args...)))
}

// give adds a source's value for a setting. The specification requires that a wrong value of a standard variable is ignored
// with a warning. Then a weaker source applies.
func (d *draft) give(s *setting, from layer, origin string, raw any) {
	if raw == "" && s.empty != "" {
		raw = s.empty
	}
	value, err := s.parse(raw)
	if err != nil && (from == fromOTel || from == fromOTelProfiles) {
		d.addWarning("%s is ignored: %s", origin, s.explain(err))
		return
	}
	key := cmp.Or(s.alias, s.Key)
	d.given[key] = append(d.given[key], given{from, origin, s.Key, raw, value, err})
}

// strongest returns the value with the highest precedence. A default has the lowest.
func (d *draft) strongest(key string) given {
	return slices.MaxFunc(d.given[key], func(a, b given) int { return cmp.Compare(a.layer, b.layer) })
}

// resolve sets the fields to the strongest values.
func (d *draft) resolve() {
	if preset, ok := d.strongest("preset").value.(string); ok {
		for key, value := range presets[preset] {
			d.give(byKey[key], fromPreset, "preset "+preset, value)
		}
	}
	for i := range table {
		s := &table[i]
		if s.alias != "" {
			continue
		}
		v := d.strongest(s.Key)
		if v.err != nil {
			d.addError(v.key, v.origin, "%s", s.explain(v.err))
			d.unreadable = true
			continue
		}
		if kvs, ok := v.value.([]KeyValue); ok && v.layer > fromPreset {
			v.value = slices.Concat(kvs, d.gaps(s.Key, kvs))
		}
		s.set(&d.Exporter, v.value)
		d.contradicted(s, v)
	}
}

// gaps returns the pairs of a preset or of OTEL_RESOURCE_ATTRIBUTES whose keys kvs lacks. Stronger sources override these pairs
// one by one.
func (d *draft) gaps(key string, kvs []KeyValue) (rest []KeyValue) {
	for _, weaker := range d.given[key] {
		if pairs, ok := weaker.value.([]KeyValue); ok && weaker.layer == fromPreset {
			rest = slices.DeleteFunc(slices.Clone(pairs), func(p KeyValue) bool { return hasKey(kvs, p.Key) })
		}
	}
	return rest
}

// contradicted refuses two spellings of a setting with different values in the same source. It adds a notice if the environment
// overrides a flag.
func (d *draft) contradicted(s *setting, v given) {
	for _, other := range d.given[s.Key] {
		switch {
		case reflect.DeepEqual(other.value, v.value):
		case other.layer == v.layer && other.key != v.key && other.err == nil:
			d.addError(v.key, v.origin, "got %v, and %s is %v: they are the same setting, so set only one of them", v.value, other.key, other.value)
		case other.layer == fromFlag && v.layer > fromFlag:
			d.addNotice(s.Key, "%s%s in the environment overrides %s%s", v.origin, s.shown(v.raw), other.origin, s.shown(other.raw))
		}
	}
}

// shown returns a value in brackets for a message, or "" if the value can be a secret.
func (s *setting) shown(raw any) string {
	if s.Secret {
		return ""
	}
	return " (" + clip(withoutCredentials(fmt.Sprint(raw))) + ")"
}

// explain describes a parser's error: the given value and the valid values, without secrets.
func (s *setting) explain(err error) string {
	var got *gotError
	if !errors.As(err, &got) {
		return err.Error()
	}
	what := "got " + got.got
	if s.Secret && s.Type == "string" {
		what = "got a value that is not a string"
	}
	what += ", expected " + s.takes
	if got.hint != "" {
		what += "; " + got.hint
	}
	return what
}
