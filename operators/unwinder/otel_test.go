package unwinder

import (
	"testing"
	"testing/synctest"
	"time"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// otelID returns the ID that the unwinder's entry gives to an event at that time since boot.
func otelID(at time.Duration, cpu uint64) uint64 {
	return wire.OtelRun<<54 | uint64(at)/1024<<16 | cpu<<2
}

func otelEvent(id, stackID uint64, pid uint32, functions ...string) wire.Unwound {
	s := &wire.Stack{ID: stackID}
	for _, f := range functions {
		s.Frames = append(s.Frames, &wire.Frame{Type: wire.FramePython, Function: f})
	}
	return wire.Unwound{ID: id, Stack: s, Proc: &wire.Proc{PID: pid}}
}

// TestAwait requires that a row gets the stack with its ID. The stack arrives before the row or while the row waits. The wait
// is limited.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = 70 * time.Hour
		var o otelStacks
		await := func(id uint64, patience time.Duration) *wire.Stack { return o.await(id, 7, uint64(at), patience) }
		o.add([]wire.Unwound{otelEvent(otelID(at, 0), 1, 7, "hash_orders")})
		began := time.Now()
		require.EqualValues(t, 1, await(otelID(at, 0), time.Second).ID)
		require.Equal(t, began, time.Now(), "it was there")

		go func() {
			time.Sleep(100 * time.Millisecond)
			o.add([]wire.Unwound{otelEvent(otelID(at, 8), 8, 7)}) // another event
			time.Sleep(100 * time.Millisecond)
			o.add([]wire.Unwound{otelEvent(otelID(at, 1), 2, 7)})
		}()
		require.EqualValues(t, 2, await(otelID(at, 1), time.Second).ID)
		require.Equal(t, 200*time.Millisecond, time.Since(began))

		require.Nil(t, await(otelID(at, 2), time.Second))
		require.Equal(t, 1200*time.Millisecond, time.Since(began))
		require.Nil(t, await(otelID(at, 2), -time.Hour), "it is too late for that")
		require.Equal(t, 1200*time.Millisecond, time.Since(began))
		require.EqualValues(t, 2, o.late)
		require.Zero(t, o.others)
	})
}

// TestOtherEvents requires that a row with the ID of another event does not get this event's stack, and does not wait.
func TestOtherEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = 70 * time.Hour
		var o otelStacks
		began := time.Now()
		for what, id := range map[string]uint64{
			"of a process":                 otelID(at+time.Millisecond, 0),
			"before this one":              otelID(at-time.Millisecond, 1),
			"long after this one":          otelID(at+time.Second, 2),
			"of this project's own gadget": otelID(at, 3) - 5<<54,
		} {
			o.add([]wire.Unwound{otelEvent(id, 3, 8)})
			before := o.others
			require.Nil(t, o.await(id, 7, uint64(at), time.Second), what)
			require.Equal(t, before+1, o.others, what)
		}
		require.Equal(t, began, time.Now())
		require.Zero(t, o.late)
	})
}

// TestRecent requires that the latest values are kept, but not more than twice the limit.
func TestRecent(t *testing.T) {
	var r recent[uint64]
	const last = 5 * otelKept
	for id := range uint64(last) {
		r.put(id, id, 1)
		require.LessOrEqual(t, len(r.young)+len(r.old), 2*otelKept)
	}
	for id := uint64(last - otelKept); id < last; id++ {
		v, ok := r.get(id)
		require.True(t, ok)
		require.Equal(t, id, v)
	}
	_, ok := r.get(0)
	require.False(t, ok)
	// Deep stacks count for more.
	r = recent[uint64]{}
	for id := range uint64(100) {
		r.put(id, id, otelFrames/2)
	}
	require.LessOrEqual(t, len(r.young)+len(r.old), 4)
}

// TestOtelNames requires that the resolver names the stacks of runs with the flag, completely or not at all. The exporter must
// get the stacks' frames.
func TestOtelNames(t *testing.T) {
	op := &operator{}
	ctx := gadgetcontext.New(t.Context(), "gadget")
	none, err := otelResolver{op}.NewInstance(symbolizer.SymbolizerOptions{Context: ctx.Context()})
	require.NoError(t, err)
	require.Nil(t, none, "a run without the flag")

	run := &otelInstance{op: op, rows: newRows(false)}
	op.otel.runs.Store(ctx.Context(), run)
	r, err := otelResolver{op}.NewInstance(symbolizer.SymbolizerOptions{Context: ctx.Context(), UseOtelEbpfProfiler: true})
	require.NoError(t, err)
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	id := otelID(time.Duration(now.Nano()), 1)
	op.otel.add([]wire.Unwound{otelEvent(id, 5, 7, "hash_orders", "work")})
	task := symbolizer.Task{Tgid: 7, CorrelationID: id, EventBootTimestamp: uint64(now.Nano())}
	got, err := r.Resolve(task, make([]symbolizer.StackItemQuery, 9), nil)
	require.NoError(t, err)
	require.Equal(t, []symbolizer.StackItemResponse{{Found: true, Symbol: "hash_orders"}, {Found: true, Symbol: "work"}}, got)
	task.Tgid = 8
	got, err = r.Resolve(task, nil, nil)
	require.NoError(t, err)
	require.Nil(t, got, "another process")
	got, err = r.Resolve(symbolizer.Task{Tgid: 7}, nil, nil)
	require.NoError(t, err)
	require.Nil(t, got, "by frame pointers")

	frames, outcome, _ := run.Frames(nil, 5, withFiles)
	require.Equal(t, []profile.Frame{{Name: "hash_orders", Type: "cpython"}, {Name: "work", Type: "cpython"}}, frames)
	require.Equal(t, stack.OK, outcome)
	frames, outcome, _ = run.Frames(nil, 0, withFiles)
	require.Empty(t, frames)
	require.Equal(t, stack.Empty, outcome)
	_, outcome, _ = run.Frames(nil, 6, withFiles)
	require.Equal(t, stack.Lost, outcome)
}

// TestPatience requires that a late row waits for a shorter time.
func TestPatience(t *testing.T) {
	require.LessOrEqual(t, patienceLeft(0), time.Duration(0), "an event at the machine's start")
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	require.Equal(t, otelPatience, patienceLeft(uint64(now.Nano())+uint64(time.Hour)), "one from the future")
}
