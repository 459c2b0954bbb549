package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

const (
	operatorKey  = "operator.otel-profiles"
	exportersKey = "exporters"
	// FileKey is the key of the exporters in Inspektor Gadget's config.
	FileKey = operatorKey + "." + exportersKey
)

// readFile reads the exporters of a config file. file is its name for messages. viper has changed the
// keys to lower case. After `kubectl gadget deploy`, all keys with dots are nested maps, including exporters' names.
func (s *Set) readFile(v *viper.Viper, file string) {
	if v == nil {
		return
	}
	s.misplaced(v, file)
	raw := v.Get(FileKey)
	exporters, ok := raw.(map[string]any)
	if len(exporters) == 0 {
		s.emptyFile = file
	}
	if raw != nil && !ok {
		s.addError(FileKey, file, "got %s, expected a map from exporter names to maps of settings", describeKind(raw))
	}
	for _, name := range slices.Sorted(maps.Keys(exporters)) {
		switch body := exporters[name].(type) {
		case map[string]any:
			s.splitExporter(name, body, file)
		case nil:
			s.fileExporter(name, nil, file)
		default:
			d := s.draft(name, file)
			d.addError(FileKey+"."+name, file, "got %s, expected a map of settings", describeKind(body))
			d.unreadable = true
		}
	}
}

// misplaced reports exporters under a key that is similar to FileKey. The key can be misspelt, or lack "operator.".
func (s *Set) misplaced(v *viper.Viper, file string) {
	const misplaced = "unknown key: exporters belong under " + FileKey
	around, _ := v.Get(operatorKey).(map[string]any)
	for _, other := range slices.Sorted(maps.Keys(around)) {
		if _, isMap := around[other].(map[string]any); isMap && other != exportersKey && near(other, exportersKey) {
			s.addError(operatorKey+"."+other, file, misplaced)
		}
	}
	if short := strings.TrimPrefix(FileKey, "operator."); v.IsSet(short) {
		s.addError(short, file, misplaced)
	}
}

// splitExporter reads the map below name. The map can contain settings of this exporter. It can also contain exporters with a
// dot in their names ("name.rest"), which viper has split.
func (s *Set) splitExporter(name string, body map[string]any, file string) {
	own := map[string]any{}
	hasSettings := slices.ContainsFunc(slices.Collect(maps.Keys(body)), func(key string) bool {
		return isSetting(key, body[key])
	})
	split := false
	for _, key := range slices.Sorted(maps.Keys(body)) {
		below, isMap := body[key].(map[string]any)
		if isMap && !isSetting(key, body[key]) && definesExporter(below, hasSettings) {
			s.splitExporter(name+"."+key, below, file)
			split = true
			continue
		}
		own[key] = body[key]
	}
	if len(own) > 0 || !split {
		s.fileExporter(name, own, file)
	}
}

// isSetting reports whether key, with a value of this shape, is a setting or a group of settings. Otherwise it is part of an
// exporter's name.
func isSetting(key string, value any) bool {
	_, isMap := value.(map[string]any)
	if isGroup(key) {
		return isMap && !definesExporter(value.(map[string]any), true)
	}
	_, setting := settingAt(key)
	return setting != nil && (!isMap || setting.takesMap())
}

func (s *setting) takesMap() bool { return s.Type == "key=value list" }

// definingKeys are the settings that define an exporter: every working exporter has at least one.
var definingKeys = []string{"exporter", "endpoint", "profiles_endpoint", "preset", "path"}

// definesExporter reports whether a map is an exporter or contains one. With doubt, the map is next to settings, so it can be a
// misspelt group. Then only the key `exporter` counts.
func definesExporter(m map[string]any, doubt bool) bool {
	keys := definingKeys
	if doubt {
		keys = keys[:1]
	}
	for _, key := range keys {
		if _, ok := m[key].(string); ok {
			return true
		}
	}
	for _, value := range m {
		if below, ok := value.(map[string]any); ok && definesExporter(below, doubt) {
			return true
		}
	}
	return false
}

// settingAt finds the setting with this dotted path, or nil. If the path continues into a setting that takes a map, rest is the
// key in that map.
func settingAt(path string) (rest string, setting *setting) {
	if setting := byKey[path]; setting != nil {
		return "", setting
	}
	for i, c := range path {
		if c != '.' {
			continue
		}
		if setting := byKey[path[:i]]; setting != nil && setting.takesMap() {
			return path[i+1:], setting
		}
	}
	return "", nil
}

func (s *Set) fileExporter(name string, body map[string]any, file string) {
	d := s.draft(name, file)
	d.Source = file
	if !wellFormed(name) || strings.ContainsAny(name, ":,=") {
		d.addError("name", file, "got %s, expected a name without spaces, ':', ',' or '=', for use on the command line", describe(name))
	}
	d.readMap("", body, file)
}

func (d *draft) readMap(prefix string, body map[string]any, file string) {
	split := map[string]map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(body)) {
		path, value := prefix+key, body[key]
		rest, setting := settingAt(path)
		switch {
		case setting != nil && rest != "": // for example `resource.deployment.environment.name: prod`
			if split[setting.Key] == nil {
				split[setting.Key] = map[string]any{}
			}
			split[setting.Key][rest] = value
		case setting != nil:
			if value != nil { // `key:` without a value
				d.give(setting, fromFile, file, value)
			}
		case isGroup(path):
			switch below := value.(type) {
			case map[string]any:
				d.readMap(path+".", below, file)
			case nil:
			default:
				d.addError(path, file, "got %s, expected a map of %s", describeKind(value), strings.Join(keysBelow(path+"."), ", "))
			}
		default:
			d.unknownKey(path, file)
		}
	}
	for key, value := range split {
		d.give(byKey[key], fromFile, file, value)
	}
}

// unknownKey reports an unknown key. It suggests a setting of the same name in another group, or else the most similar setting
// in the same group.
func (d *draft) unknownKey(path, file string) {
	owner, prefix := "an exporter", ""
	if group, _, inGroup := strings.Cut(path, "."); inGroup && isGroup(group) {
		owner, prefix = group, group+"."
	}
	last := path[strings.LastIndexByte(path, '.')+1:]
	answer := oneOf(prefix, strings.TrimPrefix(path, prefix), owner, keysBelow(prefix))
	if i := slices.IndexFunc(table, func(s setting) bool { return strings.HasSuffix("."+s.Key, "."+last) }); i >= 0 {
		answer = "the closest match is " + table[i].Key
	}
	d.addError(path, file, "unknown key; %s", answer)
}

// isGroup reports whether key is a prefix of dotted keys, for example "tls".
func isGroup(key string) bool { return keysBelow(key+".") != nil }

// keysBelow returns the keys in a group, for example "tls.". For "" it returns an exporter's top-level keys.
func keysBelow(group string) []string {
	var keys []string
	for i := range table {
		rest, ok := strings.CutPrefix(table[i].Key, group)
		if key, _, _ := strings.Cut(rest, "."); ok && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
