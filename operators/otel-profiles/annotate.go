package otelprofiles

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// checkAnnotations returns an error if --annotate names a data source or field that the gadget lacks. Inspektor Gadget silently
// ignores such names. Names from the image are not checked, because an image can describe data sources that exist only with
// some parameters.
func checkAnnotations(gadgetCtx operators.GadgetContext, sources map[string]datasource.DataSource) error {
	config := tune.Metadata(gadgetCtx)
	if config == nil {
		return nil
	}
	info, err := gadgetCtx.SerializeGadgetInfo(false)
	if err != nil {
		return fmt.Errorf("getting the gadget's metadata: %w", err)
	}
	if len(info.Metadata) == 0 {
		return nil // without an image, annotations from the gadget and from the flag cannot be distinguished
	}
	image := viper.New()
	image.SetConfigType("yaml")
	if err := image.ReadConfig(bytes.NewReader(info.Metadata)); err != nil {
		return fmt.Errorf("parsing the gadget's metadata: %w", err)
	}
	const key = "datasources"
	for _, name := range slices.Sorted(maps.Keys(config.GetStringMap(key))) {
		names := slices.Sorted(maps.Keys(sources))
		i := slices.IndexFunc(names, func(s string) bool { return strings.EqualFold(s, name) })
		switch {
		case i < 0 && image.IsSet(key+"."+name):
			continue
		case i < 0:
			return fmt.Errorf("--annotate names the data source %q, which the gadget does not have; it has %s", name, quotedList(names))
		}
		fields := key + "." + name + ".fields"
		described := image.GetStringMap(fields)
		for _, field := range slices.Sorted(maps.Keys(config.GetStringMap(fields))) {
			if _, ok := described[field]; !ok && !hasField(sources[names[i]], field) {
				return fmt.Errorf("--annotate names the field %q, which the data source %q does not have: run the gadget with --output=json to see all fields", field, names[i])
			}
		}
	}
	return nil
}

func hasField(ds datasource.DataSource, name string) bool {
	return slices.ContainsFunc(ds.Accessors(false), func(acc datasource.FieldAccessor) bool { return strings.EqualFold(acc.FullName(), name) })
}
