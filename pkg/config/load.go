package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

// BuiltIn is the name of the exporter that needs no file: it sends to a Collector on this machine,
// or to where the standard variables say.
const BuiltIn = "otlp"

// ErrUnknownExporter is what Set.Exporter returns for a name that does not exist.
var ErrUnknownExporter = errors.New("unknown exporter")

// Sources are where settings come from.
type Sources struct {
	// File is Inspektor Gadget's config, or nil. The exporters are under
	// operator.otel-profiles.exporters.
	File *viper.Viper
	// FileName is for messages.
	FileName string
	// Environ is as os.Environ returns it. Only the variables of a fixed table are read.
	Environ []string
	// Flags are the command line of this run; zero in daemons and for remote calls.
	Flags Flags
	// Daemon is set in a process that serves others. There, the built-in exporter exists only
	// where the file or the environment names it.
	Daemon bool
}

// Flags is the raw text of the command line's flags; "" is a flag that was not given. They set the
// exporter that the run names, whichever it is.
type Flags struct {
	Endpoint    string // --otel-profiles-endpoint
	Insecure    string // --otel-profiles-insecure
	Headers     string // --otel-profiles-headers
	Compression string // --otel-profiles-compression
}

func (f Flags) values() map[string]string {
	return map[string]string{
		"otel-profiles-endpoint":    f.Endpoint,
		"otel-profiles-insecure":    f.Insecure,
		"otel-profiles-headers":     f.Headers,
		"otel-profiles-compression": f.Compression,
	}
}

// A layer is a source of values. A stronger one has a higher number.
type layer int

const (
	fromDefault layer = iota
	fromPreset
	fromFile
	fromFlag
	fromGeneral      // OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
	fromOTel         // OTEL_EXPORTER_OTLP_…
	fromOTelProfiles // OTEL_EXPORTER_OTLP_PROFILES_…
	fromEnv          // INSPEKTOR_GADGET_OPERATOR_OTEL_PROFILES_EXPORTERS_<NAME>_…
)

// A given value is one source's for one setting.
type given struct {
	value  any
	layer  layer
	origin string // a file's key path, a flag or a variable, for messages
	key    string // as it was written: an alias keeps its own spelling
	// soft values are warned about and ignored when they are wrong.
	soft bool
}

// A draft is an exporter in the making.
type draft struct {
	Exporter
	given    map[string][]given // by key
	problems []*Problem
	notices  []string
	wrong    map[string]bool // keys with a value that is none; the field has the default

	// resourceGaps are attributes of OTEL_RESOURCE_ATTRIBUTES: for keys that the exporter's own `resource` lacks.
	resourceGaps []KeyValue
}

// Set is all exporters of a process. It does not change; any goroutine may use it.
type Set struct {
	drafts   map[string]*draft
	problems []*Problem // that belong to no exporter
	notices  []string
	// emptyFile is the config file, if it holds no exporter.
	emptyFile string
}

// Load reads the settings of all exporters. It never fails: a mistake is an error of its exporter,
// which Exporter and Problems return.
func Load(src Sources) *Set {
	set := &Set{drafts: map[string]*draft{}}
	file := "the config file"
	if src.FileName != "" {
		file = src.FileName
	}
	if !src.Daemon {
		set.draft(BuiltIn, "built in")
	}
	set.readFile(src.File, file)
	set.readEnviron(parseEnviron(src.Environ))
	for _, d := range set.drafts {
		d.addFlags(src.Flags)
		d.resolve()
		if !d.wrong["exporter"] { // nothing else can be judged without it
			d.validate()
		}
	}
	set.sharedFolders()
	return set
}

// sharedFolders refuses exporters that keep what they hold in the same folder: after a restart the one would send what the
// other has left.
func (s *Set) sharedFolders() {
	owner := map[string]*draft{}
	for _, name := range s.Names() {
		d := s.drafts[name]
		if d.Queue.Storage == "" {
			continue
		}
		folder := filepath.Clean(d.Queue.Storage)
		if first := owner[folder]; first != nil {
			d.problem("sending_queue.storage", d.where("sending_queue.storage"), "got %q, which is that of exporter %q: each needs a folder of its own", d.Queue.Storage, first.Name)
			continue
		}
		owner[folder] = d
	}
}

// draft returns the exporter of that name, made if need be.
func (s *Set) draft(name, source string) *draft {
	key := strings.ToLower(name)
	d := s.drafts[key]
	if d == nil {
		d = &draft{Exporter: Exporter{Name: name, Source: source}, given: map[string][]given{}, wrong: map[string]bool{}}
		s.drafts[key] = d
	}
	return d
}

// Names returns the names of all exporters, wrong ones too, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.drafts)) }

// Exporter returns the exporter of that name, in any case. The error names what is wrong with it; for
// a name that does not exist it is ErrUnknownExporter with the names that do.
func (s *Set) Exporter(name string) (Exporter, error) {
	d := s.find(name)
	if d == nil {
		return Exporter{}, s.unknown(name)
	}
	if len(d.problems) > 0 {
		return Exporter{}, &invalidError{d.problems}
	}
	return d.Exporter, nil
}

// find knows exporters that only the environment has by every spelling that makes the same variable.
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
		return fmt.Errorf("%w %q: none is configured; write one under operator.otel-profiles.exporters in the config, or set %sENDPOINT for %q", ErrUnknownExporter, clip(name), otelPrefix, BuiltIn)
	}
	hint := ""
	if strings.EqualFold(name, BuiltIn) {
		hint = "; in a daemon, " + BuiltIn + " exists only where the daemon's config or environment names it"
	}
	if s.emptyFile != "" {
		hint += "; " + s.emptyFile + " has none under " + FileKey + ", or is no valid YAML"
	}
	return fmt.Errorf("%w %q: there are %s%s", ErrUnknownExporter, clip(name), line(strings.Join(names, ", ")), line(hint))
}

// Problems returns all mistakes, each naming its exporter, its key, what was got and what is taken.
// They hold no secret.
func (s *Set) Problems() []error {
	var all []error
	seen := map[string]bool{}
	for _, name := range s.Names() {
		for _, problem := range s.drafts[name].problems {
			// A wrong flag is one mistake, however many exporters it would have set.
			if problem.flag {
				if seen[problem.Key] {
					continue
				}
				seen[problem.Key] = true
			}
			all = append(all, problem)
		}
	}
	for _, problem := range s.problems {
		all = append(all, problem)
	}
	return all
}

// NoticesFor returns warnings about settings that are valid, those that concern one exporter and those that concern all.
// They hold no secret.
func (s *Set) NoticesFor(name string) []string {
	all := slices.Clone(s.notices)
	if d := s.find(name); d != nil {
		all = append(all, d.notices...)
	}
	return all
}

// Problem is one mistake in the settings of an exporter.
type Problem struct {
	Exporter string // its name; "" where none is concerned
	Key      string // dotted, or a variable or a flag
	Where    string // the source
	Text     string // what was got, what is taken, what to do

	flag bool
}

func (p *Problem) Error() string {
	if p.Exporter == "" {
		return p.short()
	}
	return fmt.Sprintf("exporter %q: %s", p.Exporter, p.short())
}

// short leaves out the exporter.
func (p *Problem) short() string {
	if p.Where == "" || p.Where == p.Key {
		return line(p.Key + ": " + p.Text)
	}
	return line(fmt.Sprintf("%s (%s): %s", p.Key, p.Where, p.Text))
}

// invalidError is all mistakes of one exporter, in one line.
type invalidError struct{ problems []*Problem }

func (e *invalidError) Error() string {
	texts := make([]string, len(e.problems))
	for i, p := range e.problems {
		texts[i] = p.short()
	}
	texts[0] = e.problems[0].Error()
	return strings.Join(texts, "; ")
}

func (e *invalidError) Unwrap() []error {
	errs := make([]error, len(e.problems))
	for i, p := range e.problems {
		errs[i] = p
	}
	return errs
}

func (d *draft) problem(key, where, format string, args ...any) {
	d.problems = append(d.problems, &Problem{Exporter: d.Name, Key: key, Where: where, Text: fmt.Sprintf(format, args...)})
}

func (d *draft) notice(key, format string, args ...any) {
	d.warn("%s: "+format, append([]any{key}, args...)...)
}

// warn is notice about something else than a key.
func (d *draft) warn(format string, args ...any) {
	d.notices = append(d.notices, line(fmt.Sprintf("exporter %q: ", d.Name)+fmt.Sprintf(format, args...)))
}

func (d *draft) give(setting *Setting, v given) {
	v.key = setting.Key
	key := setting.Key
	if setting.alias {
		key = aliasOf(setting)
	}
	d.given[key] = append(d.given[key], v)
}

// aliasOf returns the key of the setting whose field an alias shares: the part behind the dot.
func aliasOf(setting *Setting) string {
	_, key, _ := strings.Cut(setting.Key, ".")
	return key
}

// strongest returns the value that wins for a key, and whether anybody gave one.
func (d *draft) strongest(key string) (given, bool) {
	all := d.given[key]
	if len(all) == 0 {
		return given{}, false
	}
	return slices.MaxFunc(all, func(a, b given) int { return cmp.Compare(a.layer, b.layer) }), true
}

// level says where the value of a setting comes from.
func (d *draft) level(key string) layer {
	v, ok := d.strongest(key)
	if !ok {
		return fromDefault
	}
	return v.layer
}

// origin names where a setting's value was written.
func (d *draft) origin(key string) string {
	v, ok := d.strongest(key)
	if !ok {
		return ""
	}
	return v.origin
}

func (d *draft) addFlags(flags Flags) {
	for flag, value := range flags.values() {
		if value == "" {
			continue
		}
		for i := range table {
			if table[i].Flag == flag {
				d.give(&table[i], given{value: value, layer: fromFlag, origin: "--" + flag})
			}
		}
	}
}

// resolve fills the fields: for each setting the strongest value that is right.
func (d *draft) resolve() {
	for i := range table {
		setting := &table[i]
		if setting.alias {
			continue
		}
		d.sameLevel(setting)
		d.overridden(setting)
		d.resolveSetting(setting)
		if setting.Key == "preset" && d.Preset != "" {
			for key, value := range presets[d.Preset] {
				d.give(byKey[key], given{value: value, layer: fromPreset, origin: "preset " + d.Preset})
			}
		}
	}
}

func (d *draft) resolveSetting(setting *Setting) {
	for {
		v, ok := d.strongest(setting.Key)
		if !ok {
			v = given{value: setting.defaultValue(), origin: "default", key: setting.Key}
		}
		parsed, err := setting.parse(v.value)
		if err == nil {
			if kvs, ok := parsed.([]KeyValue); ok && v.layer > fromPreset {
				parsed = slices.Concat(kvs, d.presetRest(setting, kvs))
			}
			setting.set(&d.Exporter, parsed)
			return
		}
		what := setting.explain(err)
		if v.soft {
			d.warn("%s is ignored: %s", v.origin, what)
			d.given[setting.Key] = slices.DeleteFunc(d.given[setting.Key], func(o given) bool { return o.layer == v.layer })
			continue
		}
		d.problems = append(d.problems, &Problem{Exporter: d.Name, Key: v.key, Where: v.origin, Text: what, flag: v.layer == fromFlag})
		d.wrong[setting.Key] = true
		if parsed, err := setting.parse(setting.defaultValue()); err == nil {
			setting.set(&d.Exporter, parsed)
		}
		return
	}
}

// presetRest returns the pairs of the preset whose keys are not in kvs: a preset is overridden key by
// key.
func (d *draft) presetRest(setting *Setting, kvs []KeyValue) []KeyValue {
	preset, ok := presets[d.Preset][setting.Key]
	if !ok {
		return nil
	}
	rest, err := parsePairs(preset)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(rest, func(p KeyValue) bool {
		return slices.ContainsFunc(kvs, func(kv KeyValue) bool { return kv.Key == p.Key })
	})
}

// defaultValue is the default as a parser takes it.
func (s *Setting) defaultValue() any {
	if s.Default == "" && s.Type != "text" {
		return nil
	}
	return s.Default
}

// explain turns a parser's error into what was got and what is taken, without a secret.
func (s *Setting) explain(err error) string {
	var got *gotError
	if !errors.As(err, &got) {
		return err.Error() + "; it takes " + s.takes
	}
	what := got.got
	// Headers are parsed by functions that name no value; other secrets are single texts.
	if s.Secret && s.Type == "text" {
		what = "a value that is not a text"
	} else if s.Secret && strings.HasPrefix(what, `"`) {
		what = "a value that is not shown"
	}
	what = "got " + what + ", takes " + s.takes
	if got.hint != "" {
		what += "; " + got.hint
	}
	return what
}

// sameLevel refuses two spellings of one setting that differ in one source.
func (d *draft) sameLevel(setting *Setting) {
	v, ok := d.strongest(setting.Key)
	if !ok {
		return
	}
	for _, other := range d.given[setting.Key] {
		if other.layer == v.layer && other.key != v.key {
			a, errA := setting.parse(v.value)
			b, errB := setting.parse(other.value)
			if errA == nil && errB == nil && a != b {
				d.problem(v.key, v.origin, "got %v, and %s is %v: they are the same setting, write one of them", a, other.key, b)
			}
		}
	}
}

// shown is a value in brackets, for a message; nothing where it may be a secret.
func (s *Setting) shown(value any) string {
	text, ok := value.(string)
	if !ok || s.Secret {
		return ""
	}
	return " (" + clip(withoutCredentials(text)) + ")"
}

// overridden tells who typed a flag that the environment has changed it.
func (d *draft) overridden(setting *Setting) {
	v, ok := d.strongest(setting.Key)
	if !ok || v.layer <= fromFlag {
		return
	}
	for _, other := range d.given[setting.Key] {
		if other.layer == fromFlag && other.value != v.value {
			d.notice(setting.Key, "%s%s of the environment overrides %s%s", v.origin, setting.shown(v.value), other.origin, setting.shown(other.value))
		}
	}
}
