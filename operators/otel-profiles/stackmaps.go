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
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// coldStack is the time after which an unused entry is removed from a stack map, because a full map loses new stacks. A gadget
// can keep a stack's ID while a thread sleeps. If the thread sleeps longer than coldStack, the stack is lost.
const coldStack = 5 * time.Minute

// stackMaps prevents a gadget's stack maps from filling up. An instance uses one stackMaps for all data sources, because they
// share the maps. LRU maps do not need sweeps.
type stackMaps struct {
	log                    logger.Logger
	kernel, user, buildIDs func() *ebpf.Map

	// due is set once a second while the instance runs. The sweep then runs in the gadget's goroutine. A lookup briefly removes
	// the entry from the stack map, so concurrent readers would lose stacks.
	due atomic.Bool

	// kept reports whether the maps need sweeps. It must not be called before the gadget's programs are loaded.
	kept func() bool

	mu       sync.Mutex
	janitors [2]*stack.Janitor // for kernel stacks, and for user stacks
	failed   bool
}

func newStackMaps(gadgetCtx operators.GadgetContext) *stackMaps {
	s := &stackMaps{
		log:    gadgetCtx.Logger(),
		kernel: stackMap(gadgetCtx, ebpftypes.KernelStackMapName), user: stackMap(gadgetCtx, ebpftypes.UserStackMapName),
		buildIDs: stackMap(gadgetCtx, ebpftypes.BuildIdMapName),
	}
	s.kept = sync.OnceValue(s.find)
	return s
}

// stackMap returns a function that finds a gadget's stack map. Call this function only in the gadget's goroutines, once the
// gadget's programs are loaded.
func stackMap(gadgetCtx operators.GadgetContext, name string) func() *ebpf.Map {
	return sync.OnceValue(func() *ebpf.Map { return tune.Map(gadgetCtx, name) })
}

func (s *stackMaps) find() (kept bool) {
	for i, m := range []func() *ebpf.Map{s.kernel, s.user} {
		if found := m(); found != nil && found.Type() == ebpf.StackTrace {
			s.janitors[i] = stack.NewJanitor(found, coldStack)
			kept = true
		}
	}
	return kept
}

// note records that a row contains these stacks, and sweeps if due is set. Negative IDs mean that there is no stack.
func (s *stackMaps) note(kernel, user int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range [...]int32{kernel, user} {
		if j := s.janitors[i]; j != nil {
			j.Seen(id)
		}
	}
	if !s.due.Swap(false) {
		return
	}
	now := time.Now()
	for _, j := range s.janitors {
		if j == nil {
			continue
		}
		if _, err := j.Sweep(now); err != nil && !s.failed {
			s.failed = true
			s.log.Warnf("%s: cannot remove old stacks from the gadget's stack map, which may fill up: %v", Name, err)
		}
	}
}
