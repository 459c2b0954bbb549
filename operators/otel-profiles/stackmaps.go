package otelprofiles

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// coldStack is how long an entry of a stack map stays there without a row that names it. A gadget may keep a
// stack's ID while a thread sleeps, and where the thread sleeps for longer than this its stack is lost. Without
// deleting, the map fills up, and ever more new stacks are lost.
const coldStack = 5 * time.Minute

// stackMaps keeps a gadget's stack maps from filling up. One instance has one, for all its data
// sources, because they share the maps. Maps that empty themselves (LRU) are left alone.
type stackMaps struct {
	log                    logger.Logger
	kernel, user, buildIDs func() *ebpf.Map

	// due is set when it is time to sweep, once a second while the instance runs. The sweep
	// itself is done in the gadget's goroutine: a look-up takes an entry out of a stack map for a
	// moment, so that two readers would lose stacks to each other.
	due atomic.Bool

	state atomic.Int32 // one of the constants below

	mu       sync.Mutex
	janitors [2]*stack.Janitor // kernel, user
	failed   bool
}

const (
	stackMapsUnknown = iota // the gadget has not started
	stackMapsNone           // nothing to do
	stackMapsKept
)

func newStackMaps(gadgetCtx operators.GadgetContext) *stackMaps {
	return &stackMaps{
		log:    gadgetCtx.Logger(),
		kernel: stackMap(gadgetCtx, ebpftypes.KernelStackMapName), user: stackMap(gadgetCtx, ebpftypes.UserStackMapName),
		buildIDs: stackMap(gadgetCtx, ebpftypes.BuildIdMapName),
	}
}

// mapSpec returns a function that finds what the gadget says of a map. That is there before its programs
// are loaded.
func mapSpec(gadgetCtx operators.GadgetContext) func(name string) *ebpf.MapSpec {
	return func(name string) *ebpf.MapSpec {
		v, ok := gadgetCtx.GetVar(operators.MapSpecPrefix + name)
		if !ok {
			return nil
		}
		spec, _ := v.(*ebpf.MapSpec)
		return spec
	}
}

// stackMap returns a function that finds a gadget's stack map, which is there once the gadget's
// programs are loaded. It is called in the gadget's goroutines.
func stackMap(gadgetCtx operators.GadgetContext, name string) func() *ebpf.Map {
	return sync.OnceValue(func() *ebpf.Map {
		v, ok := gadgetCtx.GetVar(operators.MapPrefix + name)
		if !ok {
			return nil
		}
		m, _ := v.(*ebpf.Map)
		return m
	})
}

// kept tells whether rows must be noted.
func (s *stackMaps) kept() bool {
	switch s.state.Load() {
	case stackMapsNone:
		return false
	case stackMapsKept:
		return true
	}
	return s.find()
}

func (s *stackMaps) find() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Load() == stackMapsUnknown {
		s.state.Store(stackMapsNone)
		for i, m := range []func() *ebpf.Map{s.kernel, s.user} {
			if found := m(); found != nil && found.Type() == ebpf.StackTrace {
				s.janitors[i] = stack.NewJanitor(stack.JanitorOptions{Stacks: m, Cold: coldStack})
				s.state.Store(stackMapsKept)
			}
		}
	}
	return s.state.Load() == stackMapsKept
}

// note records that a row names these stacks, and sweeps when it is time. Negative IDs are none.
func (s *stackMaps) note(kernel, user int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.janitors[0]; j != nil {
		j.Seen(kernel)
	}
	if j := s.janitors[1]; j != nil {
		j.Seen(user)
	}
	if !s.due.Load() {
		return
	}
	s.due.Store(false)
	now := time.Now()
	for _, j := range s.janitors {
		if j == nil {
			continue
		}
		if _, err := j.Sweep(now); err != nil && !s.failed {
			s.failed = true
			s.log.Warnf("%s: the gadget's stack map cannot be kept from filling up: %v", Name, err)
		}
	}
}
