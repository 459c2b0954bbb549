package captures

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
)

// fillPriority is before all that reads rows.
const fillPriority = -1 << 20

// filler adds rows to the packets that Inspektor Gadget makes of a map. The map is empty: each time that it is read, the rows
// come from here. So they have the fields, formatters and filters of all rows, and a packet is complete.
type filler struct {
	key, value uint32 // places in a row's payload
	rows       func() []row
	stacks     stacks
}

// fill makes a data source be filled with rows of a layout.
// While they are handed on, their stacks are shown.
func fill(ds datasource.DataSource, l *layout, rows func() []row, shown stacks) error {
	f := filler{rows: rows, stacks: shown}
	found := 0
	for _, field := range ds.Fields() {
		switch field.FullName {
		case "proc":
			f.key = field.PayloadIndex
			found++
		case "user_stack_raw":
			f.value = field.PayloadIndex
			found++
		}
	}
	if found != 2 {
		return fmt.Errorf("operator %s: the data source %q lacks the fields proc and user_stack_raw", Name, ds.Name())
	}
	// Whoever reads a field relies on its place.
	sizes := map[uint32]uint64{f.key: uint64(l.key), f.value: uint64(l.value)}
	for _, field := range ds.Fields() {
		size, ok := sizes[field.PayloadIndex]
		if f.key == f.value || ok && uint64(field.Offs)+uint64(field.Size) > size {
			return fmt.Errorf("operator %s: the field %q of the data source %q is not at the offset that the map %q has", Name, field.FullName, ds.Name(), "rows")
		}
	}
	if err := ds.SubscribeArray(f.array, fillPriority); err != nil {
		return err
	}
	return ds.SubscribeArray(func(datasource.DataSource, datasource.DataArray) error {
		f.stacks.Hide()
		return nil
	}, -fillPriority)
}

func (f *filler) array(_ datasource.DataSource, array datasource.DataArray) error {
	packet, ok := array.(datasource.Packet)
	if !ok {
		return nil
	}
	raw, ok := packet.Raw().(*api.GadgetDataArray)
	if !ok {
		return nil
	}
	for _, r := range f.rows() {
		array.Append(array.New())
		payload := raw.DataArray[len(raw.DataArray)-1].Payload
		payload[f.key], payload[f.value] = r.key, r.value
		if r.stack != nil && r.stack.whole != nil {
			f.stacks.Show(r.stack.whole)
		}
	}
	return nil
}
