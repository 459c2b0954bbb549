package captures

import (
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"
)

// field is a member of a map's key or value. Inspektor Gadget creates a field from it.
type field struct {
	name     string
	at, size uint32
	kind     api.Kind
}

func (f field) FieldName() string   { return f.name }
func (f field) FieldSize() uint32   { return f.size }
func (f field) FieldOffset() uint32 { return f.at }
func (f field) FieldType() api.Kind { return f.kind }

func staticFields(fields ...field) (out []datasource.StaticField) {
	for _, f := range fields {
		out = append(out, f)
	}
	return out
}

// exampleSource returns a data source for the map rows.
func exampleSource(t *testing.T, name string) datasource.DataSource {
	t.Helper()
	ds, err := datasource.New(datasource.TypeArray, name)
	require.NoError(t, err)
	_, err = ds.AddStaticFields(exampleKey, staticFields(field{"proc", 0, 24, api.Kind_Bytes}, field{"user_stack_key", 24, 8, api.Kind_Uint64}, field{"unwound_id", 40, 8, api.Kind_Uint64}))
	require.NoError(t, err)
	_, err = ds.AddStaticFields(exampleValue, staticFields(field{"bytes", 0, 8, api.Kind_Uint64}, field{"calls", 8, 8, api.Kind_Uint64},
		field{"user_stack_raw", 16, userSize, api.Kind_Bytes}, field{"user_stack_id", 16 + userSize, userSize, api.Kind_Bytes}))
	require.NoError(t, err)
	return ds
}

// emit simulates what Inspektor Gadget does after it has read the empty map.
func emit(t *testing.T, ds datasource.DataSource) {
	t.Helper()
	packet, err := ds.NewPacketArray()
	require.NoError(t, err)
	require.NoError(t, ds.EmitAndRelease(packet))
}

func TestFill(t *testing.T) {
	ds := exampleSource(t, "allocations")
	s, _ := exampleSums(t)
	i := &instance{layout: s.layout, stacks: &fakeStacks{}}
	i.ready.Store(true)
	require.NoError(t, i.fill(ds, func() ([]row, error) {
		rows, err := s.rows(forItself)
		require.NoError(t, err)
		return rows, err
	}))
	var got [][2]uint64
	require.NoError(t, ds.SubscribeArray(func(_ datasource.DataSource, array datasource.DataArray) error {
		got = nil
		for i := range array.Len() {
			bytes, err := ds.GetField("bytes").Uint64(array.Get(i))
			require.NoError(t, err)
			calls, err := ds.GetField("calls").Uint64(array.Get(i))
			require.NoError(t, err)
			require.Contains(t, string(ds.GetField("proc").Get(array.Get(i))), "shop")
			got = append(got, [2]uint64{bytes, calls})
		}
		return nil
	}, 0))
	example{comm: "shop", bytes: 100, calls: 3}.addTo(t, s, 1)
	example{comm: "shop", bytes: 5, calls: 1, pid: 2}.addTo(t, s, 1)
	emit(t, ds)
	require.ElementsMatch(t, [][2]uint64{{100, 3}, {5, 1}}, got)
	emit(t, ds)
	require.Empty(t, got)
}

// Metadata can name a data source whose fields do not match the rows. Without a check, its readers would crash.
func TestFillWrong(t *testing.T) {
	i := &instance{layout: exampleLayout(t)}
	source := func(keySize uint32, key []field, value ...field) datasource.DataSource {
		ds, err := datasource.New(datasource.TypeArray, "other")
		require.NoError(t, err)
		_, err = ds.AddStaticFields(keySize, staticFields(key...))
		require.NoError(t, err)
		if value != nil {
			_, err = ds.AddStaticFields(1024, staticFields(value...))
			require.NoError(t, err)
		}
		return ds
	}
	proc, stack := field{"proc", 0, 24, api.Kind_Bytes}, field{"user_stack_raw", 16, userSize, api.Kind_Bytes}
	for _, tc := range []struct {
		name string
		ds   datasource.DataSource
		want string
	}{
		{"no stack", source(exampleKey, []field{proc}, field{"bytes", 0, 8, api.Kind_Uint64}), "needs the field"},
		{"one struct for both", source(exampleKey+exampleValue, []field{proc, {"user_stack_raw", 40, userSize, api.Kind_Bytes}}), "needs the field"},
		{"a longer key", source(exampleKey+8, []field{proc, {"more", exampleKey, 8, api.Kind_Uint64}}, stack), `the field "more" of the data source "other" extends beyond`},
		{"a longer value", source(exampleKey, []field{proc}, stack, field{"more", exampleValue - 4, 8, api.Kind_Uint64}), `the field "more"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.ErrorContains(t, i.fill(tc.ds, nil), tc.want)
		})
	}
	single, err := datasource.New(datasource.TypeSingle, "single")
	require.NoError(t, err)
	_, err = single.AddStaticFields(exampleKey, staticFields(proc))
	require.NoError(t, err)
	_, err = single.AddStaticFields(exampleValue, staticFields(stack))
	require.NoError(t, err)
	require.Error(t, i.fill(single, nil), "its packets have one row each")
}
