package captures

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// settings mirrors struct capture_settings in gadgets/include/capture.h.
type settings struct {
	Step    uint64
	Stretch uint32
	Closed  uint32
}

// Control starts and stops sampling. An operator uses it if it attaches a gadget's programs only during some periods, called
// stretches. Its methods are safe for concurrent use.
type Control struct {
	mu       sync.Mutex
	settings *ebpf.Map
	now      settings
	step     uint64  // draw's step during permanent sampling; 0: the gadget's own
	share    float64 // fraction of the time that stretches take; the step is multiplied by it
	stretch  uint32
	counted  uint32 // the last closed stretch whose lost captures were counted
	weights  map[uint32]float64
	know     func(pid uint32)
}

// minStep is the smallest step in a stretch, because each capture costs some microseconds.
const minStep = 4096

// remembered is the number of stretches whose weights a Control keeps. Captures are read some seconds after their stretch.
const remembered = 1024

func newControl() *Control { return &Control{share: 1, weights: map[uint32]float64{0: 1}} }

func (c *Control) write() error {
	c.now.Step = c.step
	if c.step > 0 && c.share < 1 {
		c.now.Step = max(uint64(float64(c.step)*c.share), min(c.step, minStep))
	}
	if c.settings == nil {
		return nil
	}
	// The second entry is for processes that are sampled permanently while other processes have stretches.
	for n, s := range []settings{c.now, {Step: c.step}} {
		if uint32(n) >= c.settings.MaxEntries() {
			break
		}
		if err := c.settings.Update(uint32(n), &s, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("setting the sampling step: %w", err)
		}
	}
	return nil
}

func (c *Control) start(m *ebpf.Map, step uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings, c.step = m, step
	return c.write()
}

// Know makes the unwinder read a process's files. Call it before the first captures. Otherwise, their stacks are incomplete.
func (c *Control) Know(pid uint32) {
	if c.know != nil {
		c.know(pid)
	}
}

// Always starts permanent sampling. Each capture then has weight 1.
func (c *Control) Always() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Stretch, c.now.Closed, c.share = 0, 0, 1
	return c.write()
}

// Open begins a stretch. share, from 0 to 1, is the fraction of the time that stretches take. The sampling step is multiplied by
// share, so the total number of captures is the same as without stretches. Captures of the stretch wait until Close sets their
// weight.
func (c *Control) Open(share float64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.share = share
	c.stretch++
	if c.stretch == 0 {
		c.stretch++
	}
	delete(c.weights, c.stretch-remembered)
	c.now.Stretch, c.now.Closed = c.stretch, 0
	return c.write()
}

// Close ends a stretch or permanent sampling. weight is the number of events that each capture represents.
func (c *Control) Close(weight float64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.Stretch != 0 && c.now.Closed == 0 {
		c.weights[c.now.Stretch] = weight
	}
	c.now.Closed = 1
	return c.write()
}

func (c *Control) setStep(step uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = step
	return c.write()
}

// lostIn returns the number of the stretch of the captures that were lost since the last call. It returns 0 if no stretch was
// open. Then only processes that are sampled permanently can lose captures.
func (c *Control) lostIn() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.Closed != 0 {
		if c.counted == c.now.Stretch {
			return 0
		}
		c.counted = c.now.Stretch
	}
	return c.now.Stretch
}

// weight returns the number of events that each capture of a stretch represents. It returns false until the stretch is closed.
func (c *Control) weight(stretch uint32) (float64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.weights[stretch]
	if !ok {
		// The weights of old stretches were dropped. No capture waits that long.
		return 1, c.stretch-stretch >= remembered
	}
	return w, true
}

// finish ends an open stretch. Its captures then have weight 1.
func (c *Control) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.weights[c.now.Stretch]; !ok {
		c.weights[c.now.Stretch] = 1
	}
}
