package unwinder

import (
	"math"
	"os"
	"testing"

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
	c.begin(map[uint32]uint64{self: began, 1 << 30: 1, 1<<30 + 1: math.MaxInt64, 1<<30 + 2: of - tick, 1<<30 + 3: of - tick - 1})
	assert.True(t, c.right(self, first), "it is there")
	assert.True(t, c.right(1<<30+1, first), "it began later")
	assert.False(t, c.right(1<<30, first), "it began before, and has ended")
	assert.True(t, c.right(1<<30, 1<<30+5), "nobody knows when the container began")
	assert.True(t, c.right(first, first))
	assert.True(t, c.right(1<<30+2, first), "the kernel's clock is no finer")
	assert.False(t, c.right(1<<30+3, first))
}
