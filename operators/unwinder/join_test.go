package unwinder

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// A row's key contains a process and the stack's ID. Its value contains a time and a count.
var joinLayout = rowLayout{key: 16, value: 16, stack: 8, sums: []int{0, 8}}

func record(id, process, time, count uint64) []byte {
	b := rowOrder.AppendUint64(nil, id)
	for _, n := range []uint64{process, 0, time, count} {
		b = rowOrder.AppendUint64(b, n)
	}
	return b
}

// sumsOf returns the joined rows: time and count by process and stack.
func sumsOf(j *joiner) map[[2]uint64][2]uint64 {
	sums := map[[2]uint64][2]uint64{}
	for _, r := range j.take(func(*joined) bool { return false }) {
		sums[[2]uint64{rowOrder.Uint64(r.key), rowOrder.Uint64(r.key[8:])}] = [2]uint64{rowOrder.Uint64(r.value), rowOrder.Uint64(r.value[8:])}
	}
	return sums
}

func TestRowLayout(t *testing.T) {
	word := &btf.Int{Name: "u64", Size: 8}
	id := &btf.Typedef{Name: "profiles_stack", Type: word}
	spec := &ebpf.MapSpec{
		Name:  "rows",
		Key:   &btf.Struct{Name: "key", Size: 16, Members: []btf.Member{{Name: "pid", Type: word}, {Name: "unwound_id", Type: id, Offset: 64}}},
		Value: &btf.Struct{Name: "value", Size: 16, Members: []btf.Member{{Name: "time", Type: word}, {Name: "count", Type: word, Offset: 64}}},
	}
	l, err := rowLayoutOf(spec, []string{"time", "count"})
	require.NoError(t, err)
	require.Equal(t, joinLayout, l)
	_, err = rowLayoutOf(spec, []string{"bytes"})
	require.ErrorContains(t, err, `"bytes"`)
	_, err = rowLayoutOf(spec, nil)
	require.Error(t, err)
	_, err = rowLayoutOf(&ebpf.MapSpec{Name: "rows", Key: word, Value: spec.Value}, []string{"time"})
	require.ErrorContains(t, err, `"rows"`)
}

// Rows and stacks must be joined in any order, and equal rows must be added up.
func TestJoin(t *testing.T) {
	j, now := newJoiner(joinLayout), time.Now()
	a, b := &wire.Stack{ID: 1}, &wire.Stack{ID: 2}
	j.row(record(100, 7, 5, 1), now)
	j.stack(wire.Unwound{ID: 100, Stack: a}, now)
	j.stack(wire.Unwound{ID: 101, Stack: a}, now)
	j.row(record(101, 7, 10, 2), now)
	j.row(record(102, 7, 20, 3), now)
	j.stack(wire.Unwound{ID: 102, Stack: b}, now)
	j.row(record(103, 8, 40, 4), now)
	j.stack(wire.Unwound{ID: 103, Stack: a}, now)
	j.row([]byte("too short"), now)
	require.Equal(t, map[[2]uint64][2]uint64{
		{7, 1 + stackReserved}: {15, 3}, {7, 2 + stackReserved}: {20, 3}, {8, 1 + stackReserved}: {40, 4},
	}, sumsOf(j))
	require.Empty(t, j.take(func(*joined) bool { return false }), "rows are handed on once")
	require.Equal(t, joinCounts{bad: 1}, j.counts)
	require.Empty(t, j.rows)
	require.Empty(t, j.stacks)
}

// Rows whose stack is lost must be passed on without a stack, and their value must be counted.
func TestJoinLost(t *testing.T) {
	j, begin := newJoiner(joinLayout), time.Now()
	later := begin.Add(2 * time.Second)
	j.row(record(1, 7, 5, 1), begin)
	j.stack(wire.Unwound{ID: 2, Stack: &wire.Stack{ID: 9}}, begin)
	j.row(record(3, 7, 50, 1), later)
	j.expire(later)
	require.Equal(t, map[[2]uint64][2]uint64{{7, stackLost}: {5, 1}}, sumsOf(j))
	j.stack(wire.Unwound{ID: 3, Stack: &wire.Stack{ID: 9}}, later)
	require.Equal(t, map[[2]uint64][2]uint64{{7, 9 + stackReserved}: {50, 1}}, sumsOf(j))
	require.Equal(t, joinCounts{lost: 1, lostValue: 5, strays: 1}, j.counts)
}

// A hostile unwinder sends IDs without rows. A gadget without an unwinder sends rows without stacks. The memory for both must
// be limited.
func TestJoinIsBounded(t *testing.T) {
	j, now := newJoiner(joinLayout), time.Now()
	s := &wire.Stack{ID: 1}
	for id := range uint64(maxWaiting + 10) {
		j.stack(wire.Unwound{ID: id, Stack: s}, now)
	}
	require.Len(t, j.stacks, maxWaiting)
	require.EqualValues(t, 10, j.counts.strays)
	for id := range uint64(maxWaiting + 10) {
		j.row(record(id+1<<32, 7, 3, 1), now)
	}
	require.Len(t, j.rows, maxWaiting)
	require.Equal(t, [2]uint64{10, 30}, [2]uint64{j.counts.full, j.counts.fullValue})
	j.expire(now.Add(time.Second))
	require.Empty(t, j.rows)
	require.Empty(t, j.stacks)
	require.Equal(t, map[[2]uint64][2]uint64{{7, stackLost}: {3 * (maxWaiting + 10), maxWaiting + 10}}, sumsOf(j), "no value is lost")
}

// joinedField is a member of a map's key or value.
type joinedField struct {
	name string
	at   uint32
}

func (f joinedField) FieldName() string   { return f.name }
func (f joinedField) FieldSize() uint32   { return 8 }
func (f joinedField) FieldOffset() uint32 { return f.at }
func (f joinedField) FieldType() api.Kind { return api.Kind_Uint64 }

func joinedSource(t *testing.T) datasource.DataSource {
	t.Helper()
	ds, err := datasource.New(datasource.TypeArray, "waits")
	require.NoError(t, err)
	_, err = ds.AddStaticFields(16, []datasource.StaticField{joinedField{"proc", 0}, joinedField{"unwound_id", 8}})
	require.NoError(t, err)
	_, err = ds.AddStaticFields(16, []datasource.StaticField{joinedField{"user_stack_raw", 0}, joinedField{"count", 8}})
	require.NoError(t, err)
	return ds
}

// Rows must be added to the packet that Inspektor Gadget creates from the map. Their frames must be available while the packet
// is passed on.
func TestFill(t *testing.T) {
	ds := joinedSource(t)
	i := &unwindInstance{Stacks: &Stacks{}, joiner: newJoiner(joinLayout)}
	i.rows.stacks = map[uint64]*wire.Stack{}
	i.rows.kernel = func() *stack.Kernel { return nil }
	require.NoError(t, i.fill(ds))
	var seen []uint64
	var frames []profile.Frame
	require.NoError(t, ds.SubscribeArray(func(_ datasource.DataSource, rows datasource.DataArray) error {
		for n := range rows.Len() {
			process, _ := ds.GetField("proc").Uint64(rows.Get(n))
			count, _ := ds.GetField("count").Uint64(rows.Get(n))
			id, _ := ds.GetField("unwound_id").Uint64(rows.Get(n))
			seen = append(seen, process, count)
			var outcome stack.Outcome
			frames, outcome, _ = i.Frames(frames, id, withFiles)
			require.Equal(t, stack.OK, outcome)
		}
		return nil
	}, 50000))
	s := &wire.Stack{ID: 1, Frames: []*wire.Frame{{Type: wire.FramePython, Function: "wait"}}}
	i.joiner.row(record(5, 7, 40, 3), time.Now())
	i.joiner.stack(wire.Unwound{ID: 5, Stack: s, Proc: &wire.Proc{PID: 1}}, time.Now())
	packet, err := ds.NewPacketArray()
	require.NoError(t, err)
	require.NoError(t, ds.EmitAndRelease(packet))
	require.Equal(t, []uint64{7, 3}, seen)
	require.Len(t, frames, 1)
	require.Equal(t, "wait", frames[0].Name)
	require.Empty(t, i.rows.stacks)
	require.Error(t, Fill(ds, 8, 16, nil, nil), "fields reach beyond the key")
}

// A value that replaces an ID must say what happened to the stack.
func TestFramesWithoutStack(t *testing.T) {
	i := &unwindInstance{Stacks: &Stacks{}}
	i.rows.stacks = map[uint64]*wire.Stack{}
	for id, want := range map[uint64]stack.Outcome{stackNone: stack.Empty, stackFellBack: stack.Partial, stackLost: stack.Lost, stackReserved + 7: stack.Lost} {
		frames, outcome, unnamed := i.Frames(nil, id, withFiles)
		require.Empty(t, frames)
		require.Equal(t, want, outcome)
		require.Nil(t, unnamed)
	}
}

func TestUnwindSummary(t *testing.T) {
	c := unwindTotals{joinCounts: joinCounts{lost: 1, lostValue: 10, strays: 2}}
	c.results[wire.ResultDone] = unwindCount{8, 900}
	c.results[wire.ResultUnknownProcess] = unwindCount{2, 100}
	require.Equal(t, "10 events sampled, 8 unwound (90.0 % of the nanoseconds), 2 of processes that the unwinder had not detected yet (10.0 % of the nanoseconds), "+
		"1 whose stack did not arrive (1.0 % of the nanoseconds); 0 rows not decoded, 2 stacks without a row, 0 stacks dropped because they were not read in time", c.summary("nanoseconds"))
}

// If several processes had the same PID, the first process decides whether its rows have the correct container.
func TestFirstOfPID(t *testing.T) {
	i := &unwindInstance{Stacks: &Stacks{rows: newRows(false)}, joiner: newJoiner(joinLayout)}
	const some = 64
	for n := range uint64(some) {
		i.joiner.row(record(n, n, 1, 1), time.Now())
		i.joiner.stack(wire.Unwound{ID: n, Stack: &wire.Stack{ID: 1}, Proc: &wire.Proc{PID: 7, Start: n + 100}}, time.Now())
	}
	require.Len(t, i.ready(), some)
	require.Equal(t, map[uint32]uint64{7: 100}, i.rows.containers.starts)
}
