package captures

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

// These types describe the tests' rows. The key contains a process and a stack. The value contains sums and both forms of a
// stack.
const (
	exampleKey   = 48
	exampleValue = 16 + 2*userSize
	examplePID   = 4242
)

func member(name string, at, size uint32) btf.Member {
	return btf.Member{Name: name, Offset: btf.Bits(8 * at), Type: &btf.Struct{Size: size}}
}

func exampleRows() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "rows",
		Key: &btf.Struct{Name: "my_key", Size: exampleKey, Members: []btf.Member{
			member("proc", 0, 24), member("user_stack_key", 24, 8), member("attached_raw", 32, 4), member("kind_raw", 36, 4),
			member("unwound_id", 40, 8),
		}},
		Value: &btf.Struct{Name: "my_value", Size: exampleValue, Members: []btf.Member{
			member("bytes", 0, 8), member("calls", 8, 8), member("user_stack_raw", 16, userSize), member("user_stack_id", 16+userSize, userSize),
		}},
	}
}

func exampleLayout(t testing.TB) layout {
	t.Helper()
	l, err := layoutOfRows(exampleRows(), []string{"bytes", "calls"}, "kind_raw")
	require.NoError(t, err)
	return l
}

// layoutOfRows returns the layout of the map rows, as PreStart does.
func layoutOfRows(rows *ebpf.MapSpec, sums []string, kind string) (layout, error) {
	key, value, err := unwinder.RowTypes(rows)
	if err != nil {
		return layout{}, err
	}
	return layoutOf(key, value, sums, kind)
}

// example is a capture in the kernel's format.
type example struct {
	id, time, bytes, calls uint64
	comm                   string
	pid, space, stretch    uint32
	byID                   bool // the user stack has the second form
	unwound                uint64
	stack                  uint32 // by frame pointers
}

func (e example) data() []byte {
	b := make([]byte, headSize+exampleKey+exampleValue)
	order.PutUint64(b[atTime:], e.time)
	order.PutUint64(b[atID:], e.id)
	order.PutUint64(b[atStack:], e.unwound)
	order.PutUint32(b[atStretch:], e.stretch)
	key, value := b[headSize:], b[headSize+exampleKey:]
	copy(key[:16], e.comm)
	order.PutUint32(key[16:], e.pid)
	order.PutUint64(key[24:], uint64(e.stack))
	order.PutUint64(key[40:], e.unwound)
	order.PutUint64(value, e.bytes)
	order.PutUint64(value[8:], e.calls)
	user := value[16:]
	if e.byID {
		user = value[16+userSize:]
	}
	order.PutUint32(user[atStackID:], e.stack)
	order.PutUint32(user[atPID:], e.pid)
	order.PutUint32(user[atSpace:], e.space)
	return b
}

func (e example) record(t testing.TB, l *layout) *record {
	t.Helper()
	r, err := l.parse(e.data())
	require.NoError(t, err)
	return &r
}

func TestLayout(t *testing.T) {
	l := exampleLayout(t)
	require.Equal(t, layout{
		key: exampleKey, value: exampleValue, stackKey: 24, unwound: 40, comm: 0, attached: 32, kind: 36,
		user: [2]int{16, 16 + userSize}, sums: []int{0, 8},
	}, l)
	rows := exampleRows()
	key := rows.Key.(*btf.Struct)
	key.Members = []btf.Member{key.Members[0], key.Members[1], key.Members[4]}
	l, err := layoutOfRows(rows, nil, "")
	require.NoError(t, err)
	require.Equal(t, -1, l.attached)
	require.Equal(t, -1, l.kind)
}

// The types come from an untrusted image.
func TestLayoutWrong(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(rows *ebpf.MapSpec, key, value *btf.Struct)
		want   string
	}{
		{"no types", func(rows *ebpf.MapSpec, _, _ *btf.Struct) { rows.Key = nil }, `the key and the value of the map "rows" must be structs whose sizes are multiples of 8 bytes`},
		{"a number as key", func(rows *ebpf.MapSpec, _, _ *btf.Struct) { rows.Key = &btf.Int{Size: 8} }, "must be structs"},
		{"a size of its own", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Size++ }, "must be structs whose sizes are multiples of 8 bytes"},
		{"too large", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Size = 1 << 31 }, "larger than"},
		{"too large a value", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Size = 1 << 31 }, "larger than"},
		{"no stack key", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Members[1].Name = "x" }, `my_key has no member "user_stack_key" of 8 bytes`},
		{"no ID", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Members[4].Name = "x" }, `my_key has no member "unwound_id" of 8 bytes`},
		{"a short stack key", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Members[1].Type = &btf.Int{Size: 4} }, `no member "user_stack_key"`},
		{"a short stack", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members[2].Type = &btf.Struct{Size: 56} }, `my_value has no member "user_stack_raw" of 72 bytes`},
		{"one form of the stack", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members = value.Members[:3] }, `no member "user_stack_id"`},
		{"a sum of 4 bytes", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members[0].Type = &btf.Int{Size: 4} }, `my_value has no member "bytes" of 8 bytes`},
		{"behind the end of the key", func(_ *ebpf.MapSpec, key, _ *btf.Struct) { key.Members[1].Offset = 8 * exampleKey }, `no member "user_stack_key"`},
		{"across the end of the value", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members[3].Offset += 8 }, `no member "user_stack_id"`},
		{"a sum behind the end", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members[1].Offset = 1 << 30 }, `no member "calls"`},
		{"bits", func(_ *ebpf.MapSpec, _, value *btf.Struct) { value.Members[1].Offset++ }, `no member "calls"`},
		{"two kinds", func(_ *ebpf.MapSpec, key, _ *btf.Struct) {
			key.Members = slices.Insert(key.Members, 0, member("kind_raw", 0, 2))
		}, `my_key has no member "kind_raw" of 4 bytes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rows := exampleRows()
			tc.change(rows, rows.Key.(*btf.Struct), rows.Value.(*btf.Struct))
			_, err := layoutOfRows(rows, []string{"bytes", "calls"}, "kind_raw")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParse(t *testing.T) {
	l := exampleLayout(t)
	for _, byID := range []bool{false, true} {
		r := example{
			id: 7, time: 8, bytes: 9, calls: 10, comm: "shop", pid: examplePID, space: 11, stretch: 12, byID: byID, unwound: 13,
		}.record(t, &l)
		require.EqualValues(t, 7, r.id())
		require.EqualValues(t, 8, r.time())
		require.EqualValues(t, 12, r.stretch())
		require.EqualValues(t, 13, r.stackID())
		order.PutUint64(r.user[atInode:], 14)
		order.PutUint64(r.user[atMtimeSec:], 15)
		order.PutUint32(r.user[atMtimeNsec:], 16)
		require.Equal(t, procmap.Process{PID: examplePID, Space: 11, ExeInode: 14, ExeModified: 15e9 + 16}, r.process())
	}
}

// Truncated captures.
func TestParseHostile(t *testing.T) {
	l := exampleLayout(t)
	whole := example{}.data()
	for n := range len(whole) {
		_, err := l.parse(whole[:n])
		require.Error(t, err, n)
	}
	r, err := l.parse(whole)
	require.NoError(t, err)
	require.Zero(t, r.process().PID)
}

func FuzzParse(f *testing.F) {
	f.Add(example{pid: 1, unwound: 20}.data())
	f.Add(binary.LittleEndian.AppendUint64(nil, 1))
	l := exampleLayout(f)
	f.Fuzz(func(_ *testing.T, b []byte) {
		if r, err := l.parse(b); err == nil {
			r.process()
		}
	})
}
