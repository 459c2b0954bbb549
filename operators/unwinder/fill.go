package unwinder

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
)

// fillPriority makes Fill run before all row consumers.
const fillPriority = -1 << 20

// Fill adds rows to each packet of a data source that Inspektor Gadget creates from the gadget's empty map. The usual fields,
// formatters and filters then apply to the added rows. A row's key contains the field proc and has keySize bytes. Its value
// contains the field user_stack_raw and has valueSize bytes. rows adds each row. If put is not nil, it writes the other fields.
// done is called after the last consumer.
func Fill(ds datasource.DataSource, keySize, valueSize int, rows func(add func(key, value []byte, put func(datasource.Data))), done func()) error {
	const inKey, inValue = "proc", "user_stack_raw"
	key, value := payloadOf(ds, inKey), payloadOf(ds, inValue)
	if key < 0 || value < 0 || key == value {
		return fmt.Errorf("the data source %q needs the field %s from the map's key and the field %s from its value", ds.Name(), inKey, inValue)
	}
	sizes := map[uint32]int{uint32(key): keySize, uint32(value): valueSize}
	for _, f := range ds.Fields() {
		// Consumers rely on a field's offset.
		if size, ok := sizes[f.PayloadIndex]; ok && uint64(f.Offs)+uint64(f.Size) > uint64(size) {
			return fmt.Errorf("the field %q of the data source %q extends beyond the map's key or value", f.FullName, ds.Name())
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
		rows(func(k, v []byte, put func(datasource.Data)) {
			d := array.New()
			if put != nil {
				put(d)
			}
			array.Append(d)
			payload := raw.DataArray[len(raw.DataArray)-1].Payload
			payload[key], payload[value] = k, v
		})
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

// payloadOf returns the index of the payload that contains a field, or -1 if there is no such field.
func payloadOf(ds datasource.DataSource, name string) int {
	for _, f := range ds.Fields() {
		if f.FullName == name {
			return int(f.PayloadIndex)
		}
	}
	return -1
}
