package tune

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/stretchr/testify/require"
)

func TestCountRows(t *testing.T) {
	gadgetCtx := instantiate(t, nil)
	ds, err := gadgetCtx.RegisterDataSource(datasource.TypeArray, "samples")
	require.NoError(t, err)
	_, err = gadgetCtx.RegisterDataSource(datasource.TypeSingle, "events")
	require.NoError(t, err)
	c, err := CountRows(gadgetCtx)
	require.NoError(t, err)
	require.Nil(t, c, "the gadget has no such map")
	c.Start(gadgetCtx)

	// Rows that another callback adds are not in the gadget's map.
	require.NoError(t, ds.SubscribeArray(func(_ datasource.DataSource, rows datasource.DataArray) error {
		rows.Append(rows.New())
		return nil
	}, -1<<20))
	emit := func(rows int) {
		p, err := ds.NewPacketArray()
		require.NoError(t, err)
		for range rows {
			p.Append(p.New())
		}
		require.NoError(t, ds.EmitAndRelease(p))
	}
	gadgetCtx.SetVar(operators.MapSpecPrefix+rowsRead, &ebpf.MapSpec{Type: ebpf.Array})
	c, err = CountRows(gadgetCtx)
	require.NoError(t, err)
	c.Start(gadgetCtx) // without the map, the rows are only counted
	emit(3)

	var put []rowCount
	c.put = func(n rowCount) { put = append(put, n) }
	emit(0)
	emit(4)
	require.Len(t, put, 2)
	require.EqualValues(t, 3, put[0].Rows)
	require.EqualValues(t, 7, put[1].Rows)
	require.NotEqual(t, put[0].Turn, put[1].Turn)
	for _, n := range put {
		require.EqualValues(t, 1, n.Turn%2)
	}
}
