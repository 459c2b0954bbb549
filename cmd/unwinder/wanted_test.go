package main

import (
	"bytes"
	"testing"
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
	if len(got) != 2 || got[0] != 1 || got[1] != 0x102 {
		t.Errorf("%v", got)
	}
}
