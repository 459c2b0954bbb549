package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

// PIDs are read one after another. Truncated PIDs, and PIDs without room, are dropped.
func TestReadWanted(t *testing.T) {
	wanted := make(chan uint32, 2)
	readWanted(bytes.NewReader([]byte{1, 0, 0, 0, 2, 1, 0, 0, 3, 0, 0, 0, 4, 0}), wanted)
	close(wanted)
	var got []uint32
	for pid := range wanted {
		got = append(got, pid)
	}
	assert.Equal(t, []uint32{1, 0x102}, got)
}
