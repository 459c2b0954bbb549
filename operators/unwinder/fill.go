package unwinder

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
)

// fillPriority is before all that reads rows.
const fillPriority = -1 << 20

// fill has rows added to each packet of a data source that Inspektor Gadget makes of the map rows. So they have the fields,
// formatters and filters of all rows. The key has the field proc, and inValue is a field of the value. put writes the rest of a
// row. Behind the last reader, done is called.
func fill(ds datasource.DataSource, inValue string, l rowLayout, rows func() []*joined, put func(datasource.Data, said), done func()) error {
	const inKey = "proc"
	key, value := payloadOf(ds, inKey), payloadOf(ds, inValue)
	if key < 0 || value < 0 || key == value {
		return fmt.Errorf("the data source %q lacks the fields %s and %s of the map's key and value", ds.Name(), inKey, inValue)
	}
	sizes := map[uint32]int{uint32(key): l.key, uint32(value): l.value}
	for _, f := range ds.Fields() {
		// Whoever reads a field relies on its place.
		if size, ok := sizes[f.PayloadIndex]; ok && uint64(f.Offs)+uint64(f.Size) > uint64(size) {
			return fmt.Errorf("the field %q of the data source %q is not at its offset in the map", f.FullName, ds.Name())
		}
	}
	err := ds.SubscribeArray(func(_ datasource.DataSource, array datasource.DataArray) error {
		packet, _ := array.(datasource.Packet)
		if packet == nil {
			return nil
		}
		raw, ok := packet.Raw().(*api.GadgetDataArray)
		if !ok {
			return nil
		}
		for _, r := range rows() {
			d := array.New()
			put(d, r.said)
			array.Append(d)
			payload := raw.DataArray[len(raw.DataArray)-1].Payload
			payload[key], payload[value] = r.key, r.value
		}
		return nil
	}, fillPriority)
	if err != nil {
		return err
	}
	return ds.SubscribeArray(func(datasource.DataSource, datasource.DataArray) error {
		done()
		return nil
	}, -fillPriority)
}

// payloadOf returns the place of a field in a row's payload, -1 without one.
func payloadOf(ds datasource.DataSource, name string) int {
	for _, f := range ds.Fields() {
		if f.FullName == name {
			return int(f.PayloadIndex)
		}
	}
	return -1
}
