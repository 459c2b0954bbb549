package allocator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/allocators"
)

func TestEach(t *testing.T) {
	quick := map[uint64]bool{0: true, 8: true, 16: true}
	c := costs{emulated: time.Microsecond, stepped: 10 * time.Microsecond}
	functions := []allocators.Function{{Program: allocators.SizeFirst, Offset: 0}, {Program: allocators.SizeFirst, Offset: 12}, {Program: allocators.CountSize, Offset: 8}, {Program: allocators.AddressSize, Offset: 4}, {Program: allocators.SizeThird, Offset: 12}, {Program: allocators.Address, Offset: 4}}
	require.Equal(t, c.emulated, c.each(&file{quick: quick, functions: functions}, false), "malloc and calloc")
	require.Equal(t, (c.emulated+returnTraps*c.emulated+c.stepped)/3, c.each(&file{quick: quick, functions: functions}, true))
	require.Equal(t, c.stepped, c.each(&file{quick: quick, functions: functions[1:2]}, false))
	require.Zero(t, c.each(&file{quick: quick, functions: functions[5:]}, false), "nothing is watched")

	// The first function is malloc, which is called most. Cheaper functions must not lower the estimate.
	functions = []allocators.Function{{Program: allocators.SizeFirst, Offset: 4}, {Program: allocators.SizeFirst, Offset: 0}, {Program: allocators.CountSize, Offset: 0}, {Program: allocators.AddressSize, Offset: 8}}
	require.Equal(t, c.stepped, c.each(&file{quick: quick, functions: functions}, false))
	functions = []allocators.Function{{Program: allocators.SizeFirst, Offset: 0}, {Program: allocators.Throws, Offset: 4}, {Program: allocators.SizeFirst, Offset: 8}, {Program: allocators.CountSize, Offset: 0}, {Program: allocators.AddressSize, Offset: 8}}
	require.Equal(t, c.stepped, c.each(&file{quick: quick, functions: functions}, false), "operator new is like malloc")
}

// TestMeasured checks that the measured functions can be called.
func TestMeasured(t *testing.T) {
	emulated()
	stepped()
	require.NotZero(t, emulatedPC)
	require.NotEqual(t, emulatedPC, steppedPC)
	require.Less(t, measure(emulated), time.Second)
}
