package captures

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
)

// fill fills a data source with rows of a layout. While it passes on the rows, their stacks are available.
func fill(ds datasource.DataSource, l *layout, rows func() []row, shown stacks) error {
	err := unwinder.Fill(ds, l.key, l.value, func(add func(key, value []byte, put func(datasource.Data))) {
		for _, r := range rows() {
			add(r.key, r.value, nil)
			if r.stack != nil && r.stack.whole != nil {
				shown.Show(r.stack.whole)
			}
		}
	}, func() { shown.Hide() })
	if err != nil {
		return fmt.Errorf("operator %s: %w", Name, err)
	}
	return nil
}
