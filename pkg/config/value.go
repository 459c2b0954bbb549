package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// The parsers below take a value as YAML decoded it (from a file) or as text (from other sources). They return gotErrors, which
// describe the given value. setting.takes describes the valid values, and setting.explain combines both into a message.

// gotError describes a wrong value. got can contain the value, so parsers of secrets use describeKind for it. hint never
// contains the value.
type gotError struct{ got, hint string }

func (e *gotError) Error() string { return e.got }

// bad returns a gotError with a short description of raw.
func bad(raw any) error { return &gotError{got: describe(raw)} }

func describe(raw any) string {
	switch v := raw.(type) {
	case string:
		return strconv.Quote(clip(v))
	case bool:
		return "the boolean " + strconv.FormatBool(v)
	case int, int64, uint64, float64:
		return clip(fmt.Sprintf("the number %v", v))
	}
	return describeKind(raw)
}

// describeKind describes a value without showing it, because it can be a secret.
func describeKind(raw any) string {
	switch raw.(type) {
	case nil:
		return "nothing"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case map[string]any, map[any]any:
		return "a map"
	case []any, []string:
		return "a list"
	case time.Time:
		return "a date"
	}
	return "a number"
}

// clip limits the length of a text in log lines.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// withoutCredentials hides the query, user and password of a URL, even without a scheme.
func withoutCredentials(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		scheme := 0
		if i := strings.Index(s[:at], "//"); i >= 0 {
			scheme = i + len("//")
		}
		s = s[:scheme] + hidden + s[at:]
	}
	if before, _, ok := strings.Cut(s, "?"); ok {
		s = before + "?" + hidden
	}
	return s
}

// scalar returns a single value as text. In YAML, numbers such as the version 1.9 need no quotes.
func scalar(raw any) (text string, ok bool) {
	switch v := raw.(type) {
	case string:
		return strings.TrimSpace(v), true
	case bool, int, int64:
		return fmt.Sprint(v), true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	}
	return "", false
}

func parseText(raw any) (string, error) {
	if text, ok := raw.(string); ok {
		return text, nil
	}
	if _, ok := scalar(raw); ok {
		// The user's text is lost: YAML has already turned 0123 into 83 and 1_000 into 1000.
		return "", &gotError{describe(raw), "put it in quotes"}
	}
	return "", bad(raw)
}

// parseChoice returns the value that equals raw, ignoring case, or def if raw is empty.
func parseChoice(raw any, values []string, def string) (string, error) {
	text, ok := scalar(raw)
	if ok && text == "" {
		return def, nil
	}
	if i := slices.IndexFunc(values, func(v string) bool { return strings.EqualFold(v, text) }); i >= 0 {
		return values[i], nil
	}
	return "", bad(raw)
}

func parseBool(raw any) (bool, error) {
	text, _ := scalar(raw)
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, bad(raw)
	}
	return b, nil
}

// parseNumber returns a number between low and high. parse converts text to a number.
func parseNumber[T cmp.Ordered](raw any, parse func(string) (T, error), low, high T) (T, error) {
	text, _ := scalar(raw)
	v, err := parse(text)
	within := v >= low && v <= high // false for NaN
	if err != nil || !within {
		return v, bad(raw)
	}
	return v, nil
}

func parseDuration(raw any, low, high time.Duration) (time.Duration, error) {
	d, err := parseNumber(raw, time.ParseDuration, low, high)
	text, _ := scalar(raw)
	if n, notNumber := strconv.Atoi(text); err != nil && notNumber == nil && n > 0 {
		return 0, &gotError{describe(raw), fmt.Sprintf("use %ds for seconds", n)}
	}
	return d, err
}

func parseSize(raw any, low, high int64) (int64, error) {
	n, err := parseNumber(raw, humanize.ParseBytes, uint64(low), uint64(high))
	return int64(n), err
}

func parseRatio(raw any) (int, error) {
	text, _ := scalar(raw)
	text = strings.ReplaceAll(text, " ", "")
	if text == "1" {
		return 1, nil
	}
	of, ok := strings.CutPrefix(text, "1/")
	n, err := parseNumber(of, strconv.Atoi, 1, 1_000_000)
	if err != nil || !ok {
		return 0, bad(raw)
	}
	return n, nil
}

var betweenCommas = regexp.MustCompile(`(?:\\,|[^,])+`)

// splitCommas splits at commas. A literal comma is written "\,".
func splitCommas(s string) []string {
	parts := betweenCommas.FindAllString(s, -1)
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], `\,`, ",")
	}
	return slices.DeleteFunc(parts, func(p string) bool { return strings.TrimSpace(p) == "" })
}

// items returns the texts of a list or of a comma-separated text.
func items(raw any) ([]string, error) {
	switch v := raw.(type) {
	case nil:
		return nil, nil
	case string:
		return splitCommas(v), nil
	case []string:
		return v, nil
	case []any:
		out := make([]string, len(v))
		for i, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, &gotError{"a list with " + describeKind(item), "put it in quotes"}
			}
			out[i] = text
		}
		return out, nil
	}
	return nil, &gotError{got: describeKind(raw)}
}

func parseList(raw any) ([]string, error) {
	all, err := items(raw)
	var out []string
	for _, item := range all {
		if item = strings.TrimSpace(item); item != "" && !slices.Contains(out, item) {
			out = append(out, item)
		}
	}
	return out, err
}

// parsePairs reads key=value pairs from a list, a comma-separated text, or a map. A list keeps its order; a map is sorted by
// key. A duplicate key is an error.
func parsePairs(raw any) ([]KeyValue, error) {
	var kvs []KeyValue
	switch v := raw.(type) {
	case []KeyValue: // from parseBaggage
		kvs = v
	case map[string]any:
		flat := flatten("", v)
		for _, key := range slices.Sorted(maps.Keys(flat)) {
			value, ok := flat[key].(string)
			if !ok && flat[key] != nil {
				return nil, &gotError{describeKind(flat[key]) + " for " + strconv.Quote(clip(key)), "put it in quotes"}
			}
			kvs = append(kvs, KeyValue{key, value})
		}
	default:
		texts, err := items(raw)
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			key, value, ok := strings.Cut(text, "=")
			if !ok {
				return nil, &gotError{got: `a string without "="`}
			}
			kvs = append(kvs, KeyValue{strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	for i, kv := range kvs {
		if kv.Key == "" {
			return nil, &gotError{got: "an empty key"}
		}
		if hasKey(kvs[:i], kv.Key) {
			return nil, &gotError{got: "the key " + strconv.Quote(clip(kv.Key)) + " twice"}
		}
	}
	return kvs, nil
}

func hasKey(kvs []KeyValue, key string) bool {
	return slices.ContainsFunc(kvs, func(kv KeyValue) bool { return kv.Key == key })
}

// flatten joins keys with dots, which viper has split into nested maps. The result's keys begin with prefix.
func flatten(prefix string, m map[string]any) map[string]any {
	flat := make(map[string]any, len(m))
	for key, value := range m {
		if below, ok := value.(map[string]any); ok {
			maps.Copy(flat, flatten(prefix+key+".", below))
		} else {
			flat[prefix+key] = value
		}
	}
	return flat
}

func parseSecretPairs(raw any) ([]Header, error) {
	kvs, err := parsePairs(raw)
	var out []Header
	for _, kv := range kvs {
		out = append(out, Header{kv.Key, Secret(kv.Value)})
	}
	return out, err
}

// headerName matches lower-case names that are valid as HTTP field names and as gRPC metadata keys.
var headerName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.\-]*$`)

// reservedHeaders are set by the transport and cannot be configured.
var reservedHeaders = []string{"content-type", "content-encoding", "content-length", "te", "host", "connection", "transfer-encoding", "user-agent"}

func parseHeaders(raw any) ([]Header, error) {
	headers, err := parseSecretPairs(raw)
	for i := range headers {
		h := &headers[i]
		h.Key = strings.ToLower(h.Key)
		name := strconv.Quote(clip(h.Key))
		switch {
		case !headerName.MatchString(h.Key):
			return nil, &gotError{"the header name " + name, "names have letters, digits, '-', '_' and '.'"}
		case strings.HasPrefix(h.Key, "grpc-") || slices.Contains(reservedHeaders, h.Key):
			return nil, &gotError{"the header " + name, "the transport sets this header itself: remove it"}
		case strings.HasSuffix(h.Key, "-bin"):
			return nil, &gotError{"the header " + name, "names that end in -bin are gRPC's binary metadata, which cannot be set here"}
		case !Printable(string(h.Value)):
			return nil, &gotError{"a value of the header " + name + " with characters other than printable ASCII", "a line break at the end of a secret is the usual cause"}
		case slices.ContainsFunc(headers[:i], func(other Header) bool { return other.Key == h.Key }):
			return nil, &gotError{got: "the header " + name + " twice"}
		}
	}
	return headers, err
}

// Printable reports whether s is valid in a header.
func Printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// parseBaggage parses the lists of headers and attributes in the standard variables: comma-separated key=value with
// percent-encoded values
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specifying-headers-via-environment-variables). The last value of
// a repeated key wins.
func parseBaggage(s string) ([]KeyValue, error) {
	const takes = ", expected comma-separated key=value pairs with percent-encoded values"
	var out []KeyValue
	for member := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(member) == "" {
			continue
		}
		name, text, ok := strings.Cut(member, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf(`got an entry that is not "key=value"%s`, takes)
		}
		key, wrongKey := url.PathUnescape(name)
		value, wrongValue := url.PathUnescape(strings.TrimSpace(text))
		switch {
		case wrongKey != nil || wrongValue != nil:
			return nil, fmt.Errorf("got an invalid percent-encoding for %q%s", clip(name), takes)
		case !utf8.ValidString(key) || !utf8.ValidString(value):
			return nil, fmt.Errorf("got text for %q that is not UTF-8%s", clip(name), takes)
		}
		out = slices.DeleteFunc(out, func(kv KeyValue) bool { return kv.Key == key })
		out = append(out, KeyValue{key, value})
	}
	return out, nil
}

// wellFormed reports whether s is valid as a name on a command line, in a label, and in a log line.
func wellFormed(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) })
}

var zeroUnits = regexp.MustCompile(`([hm])0[ms](0s)?$`)

// short writes 1m for 1m0s.
func short(d time.Duration) string { return zeroUnits.ReplaceAllString(d.String(), "$1") }

func formatSize(n int64) string { return humanize.IBytes(uint64(n)) }
