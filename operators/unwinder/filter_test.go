package unwinder

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

func TestFilter(t *testing.T) {
	s := &wire.Sample{Proc: &wire.Proc{PID: 7, MntNS: 1}, Comm: "worker"}
	for name, c := range map[string]struct {
		f    filter
		pass bool
	}{
		"everything":    {filter{}, true},
		"its PID":       {filter{pids: []uint32{6, 7}}, true},
		"another PID":   {filter{pids: []uint32{6}}, false},
		"its name":      {filter{comms: []string{"worker"}}, true},
		"a longer name": {filter{comms: []string{"worker1"}}, false},
		"PID, not name": {filter{pids: []uint32{7}, comms: []string{"main"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.f.begin()
			assert.Equal(t, c.pass, c.f.pass(s))
		})
	}
}

// A lower frequency than the unwinder's takes a fair share.
func TestShare(t *testing.T) {
	assert.Equal(t, uint64(1000), share(1000, 19, 19))
	assert.Equal(t, uint64(1000), share(1000, 99, 19), "there are no more than were taken")
	got := float64(share(100000, 19, 95))
	assert.InDelta(t, 20000, got, 1000)
}
