package unwinder

import (
	"math"
	"os"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// If a process has exited, and started before its row's container, it belongs to another container.
func TestContainerOfTheRow(t *testing.T) {
	self, first := uint32(os.Getpid()), uint32(os.Getppid())
	began, err := procfs.Began("/proc", self)
	require.NoError(t, err)
	require.Positive(t, began)
	c := containers{}
	of, err := procfs.Began("/proc", first)
	require.NoError(t, err)
	c.begin(map[uint32]uint64{self: began, 1 << 30: 1, 1<<30 + 1: math.MaxInt64, 1<<30 + 2: of - procfs.Tick, 1<<30 + 3: of - procfs.Tick - 1})
	assert.True(t, c.right(self, first), "it is there")
	assert.True(t, c.right(1<<30+1, first), "it began later")
	assert.False(t, c.right(1<<30, first), "it began before, and has ended")
	assert.True(t, c.right(1<<30, 1<<30+5), "nobody knows when the container began")
	assert.True(t, c.right(first, first))
	assert.True(t, c.right(1<<30+2, first), "the kernel's clock is no finer")
	assert.False(t, c.right(1<<30+3, first))
}

// A row from another process's container must be left out, and counted with its value.
func TestRowOfAnotherContainer(t *testing.T) {
	ds, err := datasource.New(datasource.TypeSingle, "waits")
	require.NoError(t, err)
	proc, err := ds.AddField("proc", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty))
	require.NoError(t, err)
	pid, err := proc.AddSubField("pid", api.Kind_Uint32)
	require.NoError(t, err)
	container, err := ds.AddField("runtime", api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty))
	require.NoError(t, err)
	var wrong, passed []uint64
	c := containers{wrong: func(value uint64) { wrong = append(wrong, value) }}
	require.NoError(t, c.subscribe(ds, "value"), "a data source without containers")
	first, err := container.AddSubField("containerPid", api.Kind_Uint32)
	require.NoError(t, err)
	value, err := ds.AddField("value", api.Kind_Uint64)
	require.NoError(t, err)
	require.NoError(t, c.subscribe(ds, "value"))
	require.NoError(t, ds.Subscribe(func(_ datasource.DataSource, d datasource.Data) error {
		n, err := value.Uint64(d)
		passed = append(passed, n)
		return err
	}, checkPriority+1))
	c.begin(map[uint32]uint64{1 << 30: 1})
	for n, row := range [][2]uint32{{1 << 30, uint32(os.Getppid())}, {1 << 30, 0}, {1<<30 + 1, uint32(os.Getppid())}} {
		p, err := ds.NewPacketSingle()
		require.NoError(t, err)
		require.NoError(t, pid.PutUint32(p, row[0]))
		require.NoError(t, first.PutUint32(p, row[1]))
		require.NoError(t, value.PutUint64(p, uint64(7+n)))
		require.NoError(t, ds.EmitAndRelease(p))
	}
	require.Equal(t, []uint64{7}, wrong)
	require.Equal(t, []uint64{8, 9}, passed)
}
