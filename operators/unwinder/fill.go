package unwinder

import (
	"fmt"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
)

// fillPriority is before all readers of rows.
const fillPriority = -1 << 20

// Fill adds rows to each packet of a data source that Inspektor Gadget makes from the map rows. The map itself is empty. So the
// added rows get the usual fields, formatters and filters. The key, of keySize bytes, has the field proc. The value, of valueSize
// bytes, has the field user_stack_raw. rows adds each row; put, unless nil, writes the other fields. done is called after the
// last reader.
func Fill(ds datasource.DataSource, keySize, valueSize int, rows func(add func(key, value []byte, put func(datasource.Data))), done func()) error {
	const inKey, inValue = "proc", "user_stack_raw"
	key, value := payloadOf(ds, inKey), payloadOf(ds, inValue)
	if key < 0 || value < 0 || key == value {
		return fmt.Errorf("the data source %q lacks the fields %s and %s of the map's key and value", ds.Name(), inKey, inValue)
	}
	sizes := map[uint32]int{uint32(key): keySize, uint32(value): valueSize}
	for _, f := range ds.Fields() {
		// Readers of a field rely on its offset.
		if size, ok := sizes[f.PayloadIndex]; ok && uint64(f.Offs)+uint64(f.Size) > uint64(size) {
			return fmt.Errorf("the field %q of the data source %q extends past the end of the map's key or value", f.FullName, ds.Name())
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

// payloadOf returns the index of the payload with a field, or -1 if there is no such field.
func payloadOf(ds datasource.DataSource, name string) int {
	for _, f := range ds.Fields() {
		if f.FullName == name {
			return int(f.PayloadIndex)
		}
	}
	return -1
}
