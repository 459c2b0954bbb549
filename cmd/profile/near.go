package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// nearest returns the most similar name, or the only name that begins with the given word. It returns "" if none is similar.
func nearest(given string, names []string) string {
	begins := func(name string) bool { return strings.HasPrefix(name, given) }
	if i := slices.IndexFunc(names, begins); i >= 0 && !slices.ContainsFunc(names[i+1:], begins) {
		return names[i]
	}
	name := config.Nearest(given, names)
	if d := config.Distance(given, name); d < 3 && d < len(name) { // up to two wrong letters are a typing error
		return name
	}
	return ""
}

// meant adds the most similar name to an error.
func meant(err error, given string, names []string) error {
	if name := nearest(given, names); name != "" {
		return fmt.Errorf("%w: did you mean %s?", err, name)
	}
	return err
}

var unknownFlag = regexp.MustCompile(`^unknown flag: --([a-z0-9-]+)`)

// parse parses flags and checks --rows. The error for an unknown flag suggests a similar one.
func parse(flags *pflag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if err == nil {
		if rows, err := flags.GetInt("rows"); err == nil && rows < 1 {
			return fmt.Errorf("--rows %d: must be 1 or more", rows)
		}
		return nil
	}
	if found := unknownFlag.FindStringSubmatch(err.Error()); found != nil {
		var names []string
		flags.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		return meant(err, "--"+found[1], names)
	}
	return err
}

// gadgetName returns the short name of one of this project's gadgets, or an image's name unchanged. A similar name is an error,
// because Inspektor Gadget would request this name from a registry.
func gadgetName(asked string) (string, error) {
	if asked == "" || strings.ContainsAny(asked, "/:@") || ownGadgets[asked] != "" {
		return asked, nil
	}
	short := strings.TrimPrefix(asked, "profile_")
	if ownGadgets[short] != "" {
		return short, nil
	}
	names := slices.Sorted(maps.Keys(ownGadgets))
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(short))
	plain = strings.TrimPrefix(plain, "profile")
	for _, name := range append(slices.Sorted(maps.Keys(otherWords)), names...) {
		if plain == name || plain == name+"s" || nearest(plain, []string{name}) != "" && len(plain) > 1 {
			return "", fmt.Errorf("--gadget %s: there is no such gadget: did you mean %s?", asked, cmp.Or(otherWords[name], name))
		}
	}
	if !strings.Contains(asked, "_") {
		return "", fmt.Errorf("--gadget %s: must be %s, or a gadget's image, such as trace_open:latest", asked, strings.Join(names, ", "))
	}
	return asked, nil
}

// otherWords maps other words that users may try to the gadgets' names.
var otherWords = map[string]string{"memory": "alloc", "wait": "offcpu", "fault": "pagefault"}
