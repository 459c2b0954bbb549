package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
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

// The parsers below take a value as YAML decoded it (from a file) or as text (from everywhere else).
// Their errors are gotErrors: they say what was given. Setting.takes says what is allowed, and
// Setting.explain makes one message of both.

// gotError is the first half of a message, "got …, takes …". got can contain the value, so it may be
// shown only for settings that are not secret. hint never contains the value.
type gotError struct{ got, hint string }

func (e *gotError) Error() string { return e.got }

func gotf(format string, args ...any) error { return &gotError{got: fmt.Sprintf(format, args...)} }

// bad returns a gotError that describes raw in a few words, fit for a log line.
func bad(raw any) error { return &gotError{got: describe(raw)} }

// hinted adds a hint, what to do about it, to a gotError. Other errors are returned as they are.
func hinted(err error, hint string) error {
	var got *gotError
	if errors.As(err, &got) {
		return &gotError{got: got.got, hint: hint}
	}
	return err
}

func describe(raw any) string {
	switch v := raw.(type) {
	case nil:
		return "nothing"
	case string:
		return strconv.Quote(clip(v))
	case map[string]any, map[any]any:
		return "a map"
	case []any, []string:
		return "a list"
	case bool:
		return "the boolean " + strconv.FormatBool(v)
	case time.Time:
		return "a date"
	default:
		return clip(fmt.Sprintf("the number %v", v))
	}
}

// clip keeps hostile or accidental lengths out of log lines.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	for i := most; i > 0; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i] + "…"
		}
	}
	return "…"
}

// withoutCredentials hides what a URL can carry besides an address: user and password, which may be
// there without a scheme in front, and the query.
func withoutCredentials(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		scheme := 0
		if i := strings.Index(s[:at], "//"); i >= 0 {
			scheme = i + len("//")
		}
		s = s[:scheme] + "…" + s[at:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s = s[:i] + "?…"
	}
	return s
}

func parseText(raw any) (string, error) {
	switch v := raw.(type) {
	case string:
		return v, nil
	case nil:
		return "", nil
	case map[string]any, map[any]any, []any, []string:
		return "", bad(raw)
	}
	// A number or a boolean. What the user wrote is gone: YAML has already turned 0123 into 83 and
	// 1_000 into 1000.
	return "", hinted(bad(raw), "put it in quotes")
}

// parseChoice returns the one of values that raw is, whatever its case, or def if raw is empty. It
// takes numbers too, so that 1.9 needs no quotes in YAML.
func parseChoice(raw any, values []string, def string) (string, error) {
	var s string
	switch v := raw.(type) {
	case string:
		s = strings.TrimSpace(v)
	case nil:
	case float64:
		s = strconv.FormatFloat(v, 'f', -1, 64)
	case int:
		s = strconv.Itoa(v)
	default:
		return "", bad(raw)
	}
	if s == "" {
		return def, nil
	}
	for _, value := range values {
		if strings.EqualFold(value, s) {
			return value, nil
		}
	}
	return "", bad(raw)
}

func parseBool(raw any) (bool, error) {
	switch v := raw.(type) {
	case bool:
		return v, nil
	case string:
		if b, err := strconv.ParseBool(strings.TrimSpace(v)); err == nil {
			return b, nil
		}
	}
	return false, bad(raw)
}

func parseInt(raw any, low, high int) (int, error) {
	var n int64
	switch v := raw.(type) {
	case int:
		n = int64(v)
	case int64:
		n = v
	case string:
		var err error
		if n, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64); err != nil {
			return 0, bad(raw)
		}
	default:
		return 0, bad(raw)
	}
	if n < int64(low) || n > int64(high) {
		return 0, bad(raw)
	}
	return int(n), nil
}

func parseFloat(raw any, low, high float64) (float64, error) {
	var f float64
	switch v := raw.(type) {
	case float64:
		f = v
	case int:
		f = float64(v)
	case string:
		var err error
		if f, err = strconv.ParseFloat(strings.TrimSpace(v), 64); err != nil {
			return 0, bad(raw)
		}
	default:
		return 0, bad(raw)
	}
	if math.IsNaN(f) || f < low || f > high {
		return 0, bad(raw)
	}
	return f, nil
}

func parseDuration(raw any, low, high time.Duration) (time.Duration, error) {
	var d time.Duration
	switch v := raw.(type) {
	case time.Duration:
		d = v
	case int:
		if v != 0 {
			return 0, hinted(bad(raw), "write "+strconv.Itoa(v)+"s if seconds are meant")
		}
	case string:
		s := strings.TrimSpace(v)
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			if n, err := strconv.Atoi(s); err == nil {
				return 0, hinted(bad(raw), "write "+strconv.Itoa(n)+"s if seconds are meant")
			}
			return 0, bad(raw)
		}
	default:
		return 0, bad(raw)
	}
	if d < low || d < 0 || high > 0 && d > high {
		return 0, bad(raw)
	}
	return d, nil
}

func parseSize(raw any, low, high int64) (int64, error) {
	var f float64
	switch v := raw.(type) {
	case int:
		f = float64(v)
	case int64:
		f = float64(v)
	case float64: // 6.4e7
		f = v
	case string:
		n, err := humanize.ParseBytes(v)
		if err != nil {
			return 0, bad(raw)
		}
		f = float64(n)
	default:
		return 0, bad(raw)
	}
	if !(f >= float64(low) && f <= float64(high)) {
		return 0, bad(raw)
	}
	return int64(f), nil
}

func parseRatio(raw any) (int, error) {
	s, ok := raw.(string)
	if !ok {
		if raw == 1 {
			return 1, nil
		}
		return 0, bad(raw)
	}
	one, rest, ok := strings.Cut(strings.ReplaceAll(s, " ", ""), "/")
	if one != "1" {
		return 0, bad(raw)
	}
	if !ok {
		return 1, nil
	}
	n, err := parseInt(rest, 1, 1_000_000)
	if err != nil {
		return 0, bad(raw)
	}
	return n, nil
}

// splitCommas splits at commas and leaves out empty parts. A comma within a part is written "\,".
func splitCommas(s string) []string {
	var parts []string
	var part strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && s[i+1] == ',':
			part.WriteByte(',')
			i++
		case s[i] == ',':
			parts = append(parts, part.String())
			part.Reset()
		default:
			part.WriteByte(s[i])
		}
	}
	parts = append(parts, part.String())
	return slices.DeleteFunc(parts, func(p string) bool { return strings.TrimSpace(p) == "" })
}

func parseList(raw any) ([]string, error) {
	var items []string
	switch v := raw.(type) {
	case nil:
		return nil, nil
	case string:
		items = splitCommas(v)
	case []string:
		items = v
	case []any:
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, &gotError{got: "a list with " + describe(item), hint: "put it in quotes"}
			}
			items = append(items, s)
		}
	default:
		return nil, bad(raw)
	}
	var out []string
	for _, item := range items {
		if item = strings.TrimSpace(item); item != "" && !slices.Contains(out, item) {
			out = append(out, item)
		}
	}
	return out, nil
}

// parsePairs reads key=value pairs from a list, from text with commas, or from a map. Those of a list
// stay in order; those of a map are sorted by key. The same key twice is an error.
func parsePairs(raw any) ([]KeyValue, error) {
	var out []KeyValue
	add := func(key, value string) error {
		if key == "" {
			return &gotError{got: "an empty key"}
		}
		if slices.ContainsFunc(out, func(kv KeyValue) bool { return kv.Key == key }) {
			return &gotError{got: "the key " + strconv.Quote(clip(key)) + " twice"}
		}
		out = append(out, KeyValue{key, value})
		return nil
	}
	var items []string
	switch v := raw.(type) {
	case nil:
		return nil, nil
	case map[string]any:
		flat, err := flatten("", v)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(flat)) {
			if err := add(key, flat[key]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []KeyValue: // from parseBaggage
		for _, kv := range v {
			if err := add(kv.Key, kv.Value); err != nil {
				return nil, err
			}
		}
		return out, nil
	case string:
		items = splitCommas(v)
	case []string:
		items = v
	case []any:
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, &gotError{got: "a list with " + describeKind(item)}
			}
			items = append(items, s)
		}
	default:
		return nil, bad(raw)
	}
	for _, item := range items {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, &gotError{got: `a text without "="`}
		}
		if err := add(strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// flatten undoes what viper does to keys with dots: it splits them into nested maps. The keys of the
// result are the joined ones, with prefix in front.
func flatten(prefix string, m map[string]any) (map[string]string, error) {
	flat := make(map[string]string, len(m))
	for key, value := range m {
		switch v := value.(type) {
		case string:
			flat[prefix+key] = v
		case nil:
			flat[prefix+key] = ""
		case map[string]any:
			below, err := flatten(prefix+key+".", v)
			if err != nil {
				return nil, err
			}
			maps.Copy(flat, below)
		default:
			return nil, &gotError{got: describeKind(v) + " for " + strconv.Quote(clip(prefix+key)), hint: "put it in quotes"}
		}
	}
	return flat, nil
}

// describeKind is describe without the value, for what may be a secret.
func describeKind(raw any) string {
	switch raw.(type) {
	case string:
		return "a text"
	case bool:
		return "a boolean"
	case int, int64, float64:
		return "a number"
	}
	return describe(raw)
}

// headerName matches names, in lower case, that are valid both as an HTTP field name and as a gRPC
// metadata key.
var headerName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.\-]*$`)

// reservedHeaders are set by the transport itself and cannot be configured.
var reservedHeaders = []string{"content-type", "content-encoding", "content-length", "te", "host", "connection", "transfer-encoding", "user-agent"}

func parseHeaders(raw any) ([]Header, error) {
	kvs, err := parsePairs(raw)
	if err != nil {
		return nil, err
	}
	out := make([]Header, 0, len(kvs))
	for _, kv := range kvs {
		key := strings.ToLower(kv.Key)
		switch {
		case !headerName.MatchString(key):
			return nil, &gotError{got: "the header name " + strconv.Quote(clip(key)), hint: "names have letters, digits, '-', '_' and '.'"}
		case strings.HasPrefix(key, "grpc-") || slices.Contains(reservedHeaders, key):
			return nil, &gotError{got: "the header " + strconv.Quote(key), hint: "the transport sets that one itself: leave it out"}
		case strings.HasSuffix(key, "-bin"):
			return nil, &gotError{got: "the header " + strconv.Quote(clip(key)), hint: "names that end in -bin are gRPC's binary metadata, which cannot be set here"}
		case !printable(kv.Value):
			return nil, &gotError{got: "a value of the header " + strconv.Quote(clip(key)) + " with characters other than printable ASCII", hint: "a line break at the end of a secret is the usual cause"}
		case slices.ContainsFunc(out, func(h Header) bool { return h.Key == key }):
			return nil, &gotError{got: "the header " + strconv.Quote(clip(key)) + " twice"}
		}
		out = append(out, Header{key, kv.Value})
	}
	return out, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// parseBaggage reads the header and attribute lists of the standard variables: key=value with
// commas between them, values percent-encoded
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specifying-headers-via-environment-variables).
func parseBaggage(s string) ([]KeyValue, error) {
	var out []KeyValue
	for member := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(member) == "" {
			continue
		}
		key, value, ok := strings.Cut(member, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" {
			return nil, &gotError{got: `a member that is not "key=value"`}
		}
		decodedKey, err := url.PathUnescape(key)
		if err == nil {
			value, err = url.PathUnescape(value)
		}
		if err != nil {
			return nil, &gotError{got: "a wrong percent-encoding for " + strconv.Quote(clip(key))}
		}
		if !utf8.ValidString(decodedKey) || !utf8.ValidString(value) {
			return nil, &gotError{got: "text that is not UTF-8 for " + strconv.Quote(clip(key))}
		}
		out = slices.DeleteFunc(out, func(kv KeyValue) bool { return kv.Key == decodedKey })
		out = append(out, KeyValue{decodedKey, value})
	}
	return out, nil
}

// wellFormed reports whether s can serve as a name: it fits on a command line, into a label and into a
// log line.
func wellFormed(s string) bool {
	if s == "" || len(s) > 255 || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) })
}

// line replaces control characters, so that a message is one line: names of exporters, keys and
// variables can contain anything.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '�'
		}
		return r
	}, s)
}

func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func formatSize(n int64) string { return humanize.IBytes(uint64(n)) }

func between(low, high float64) string {
	format := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	if high >= math.MaxInt32 {
		return " of at least " + format(low)
	}
	return " from " + format(low) + " to " + format(high)
}
