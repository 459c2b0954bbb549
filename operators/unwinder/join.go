package unwinder

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

const (
	// joinPatience is how long rows and stacks wait for each other. The unwinder writes once a second, or later on a busy
	// machine.
	joinPatience = 3 * time.Second
	// maxWaiting limits both the waiting rows and the waiting stacks.
	maxWaiting = 1 << 16
	// maxRowSize limits a row's key and value, in bytes.
	maxRowSize = 4096
)

// These values can replace a stack's ID.
const (
	stackNone     = iota // frame-pointer stacks were requested; they are in the row's other fields
	stackFellBack        // the same, because the unwinder collected no stack: UNWIND_FELL_BACK in gadgets/include/unwind.h
	stackLost            // the unwinder collected a stack, but it did not arrive
	stackReserved = 16   // smallest ID of a stack
)

// rowLayout holds the offsets within the key and the value of a gadget's rows.
type rowLayout struct {
	key, value int // sizes in bytes
	stack      int // offset of the stack's ID in the key
	sums       []int
}

// rowLayoutOf derives the layout from the types of the map rows. sums lists the members of the value to add up.
func rowLayoutOf(rows *ebpf.MapSpec, sums []string) (rowLayout, error) {
	key, value, err := RowTypes(rows)
	if err != nil {
		return rowLayout{}, err
	}
	l := rowLayout{key: int(key.Size), value: int(value.Size)}
	if l.stack, err = Member(key, "unwound_id", 8); err != nil {
		return l, err
	}
	for _, name := range sums {
		at, err := Member(value, name, 8)
		if err != nil {
			return l, err
		}
		l.sums = append(l.sums, at)
	}
	if len(l.sums) == 0 {
		return l, fmt.Errorf("the gadget's metadata has no sums: list the fields to sum up in gadget.yaml")
	}
	return l, nil
}

// RowTypes returns the key and value types of the map rows.
func RowTypes(rows *ebpf.MapSpec) (key, value *btf.Struct, err error) {
	key, okKey := rows.Key.(*btf.Struct)
	value, okValue := rows.Value.(*btf.Struct)
	if !okKey || !okValue || key.Size%8 != 0 || value.Size%8 != 0 {
		return nil, nil, fmt.Errorf("the key and the value of the map %q must be structs whose sizes are multiples of 8 bytes", rows.Name)
	}
	if key.Size > maxRowSize || value.Size > maxRowSize {
		return nil, nil, fmt.Errorf("the key or the value of the map %q is larger than %d bytes", rows.Name, maxRowSize)
	}
	return key, value, nil
}

// Member returns the offset of a member that has at least the given size and lies within the struct.
func Member(s *btf.Struct, name string, size int) (int, error) {
	for _, m := range s.Members {
		if m.Name != name || name == "" {
			continue
		}
		n, err := btf.Sizeof(m.Type)
		at := m.Offset.Bytes()
		if err == nil && n >= size && m.Offset%8 == 0 && uint64(at)+uint64(size) <= uint64(s.Size) {
			return int(at), nil
		}
		break
	}
	return 0, fmt.Errorf("%s has no member %q of %d bytes", s.Name, name, size)
}

// joined is the sum of equal rows, with their stack.
type joined struct {
	key, value []byte
	stack      *wire.Stack // nil if the stack was lost
	proc       *wire.Proc  // nil if the stack was lost
	said       said
	since      time.Time // when the first of these rows was added
}

// sumKey identifies equal rows.
type sumKey struct {
	key string
	said
}

// arrival is an entry of a queue, oldest first.
type arrival struct {
	id    uint64
	since time.Time
}

// joinCounts counts the rows and stacks of one run. Values use the unit of the first sum.
type joinCounts struct {
	lost      uint64 // rows whose stack did not arrive in time
	lostValue uint64
	strays    uint64 // stacks without a row
	full      uint64 // rows for which there was no room
	fullValue uint64
	bad       uint64 // rows that could not be decoded
}

// joiner matches a gadget's rows with stacks by ID, and adds up equal rows. It is not safe for concurrent use.
type joiner struct {
	layout rowLayout
	rows   map[uint64][]byte       // keys and values of rows whose stacks have not arrived yet
	stacks map[uint64]wire.Unwound // stacks whose rows have not arrived yet
	oldest struct{ rows, stacks []arrival }
	sums   map[sumKey]*joined
	counts joinCounts
	said   sayings
}

func newJoiner(l rowLayout) *joiner {
	return &joiner{layout: l, rows: map[uint64][]byte{}, stacks: map[uint64]wire.Unwound{}, sums: map[sumKey]*joined{}}
}

var rowOrder = binary.NativeEndian

// row processes a record from the gadget's buffer, which contains an ID, the key and the value. It does not keep data.
func (j *joiner) row(data []byte, now time.Time) {
	if len(data) < 8+j.layout.key+j.layout.value {
		j.counts.bad++
		return
	}
	id := rowOrder.Uint64(data)
	data = data[8:][:j.layout.key+j.layout.value]
	if s, ok := j.stacks[id]; ok {
		delete(j.stacks, id)
		j.add(data, &s, now)
		return
	}
	if len(j.rows) >= maxWaiting {
		j.counts.full++
		j.counts.fullValue += j.worth(data)
		j.add(data, nil, now)
		return
	}
	j.rows[id] = append([]byte(nil), data...)
	j.oldest.rows = append(j.oldest.rows, arrival{id, now})
}

// stack processes a stack that has arrived from the unwinder.
func (j *joiner) stack(u wire.Unwound, now time.Time) {
	if r, ok := j.rows[u.ID]; ok {
		delete(j.rows, u.ID)
		j.add(r, &u, now)
		return
	}
	if len(j.stacks) >= maxWaiting {
		j.counts.strays++
		return
	}
	j.stacks[u.ID] = u
	j.oldest.stacks = append(j.oldest.stacks, arrival{u.ID, now})
}

// worth returns how much a row adds to the first sum.
func (j *joiner) worth(data []byte) uint64 {
	return rowOrder.Uint64(data[j.layout.key+j.layout.sums[0]:])
}

// add adds a row to the next batch.
func (j *joiner) add(data []byte, u *wire.Unwound, now time.Time) {
	key, value := data[:j.layout.key], data[j.layout.key:]
	row := joined{since: now}
	if u != nil {
		row.stack, row.proc, row.said = u.Stack, u.Proc, j.said.of(&u.Said)
	}
	rowOrder.PutUint64(key[j.layout.stack:], RowID(row.stack))
	sum := j.sums[sumKey{string(key), row.said}]
	if sum == nil {
		row.key, row.value = append([]byte(nil), key...), append([]byte(nil), value...)
		j.sums[sumKey{string(key), row.said}] = &row
		return
	}
	for _, at := range j.layout.sums {
		rowOrder.PutUint64(sum.value[at:], rowOrder.Uint64(sum.value[at:])+rowOrder.Uint64(value[at:]))
	}
}

// expire passes on the rows that arrived before the given time. They have no stacks.
func (j *joiner) expire(before time.Time) {
	q := j.oldest.rows
	for ; len(q) > 0 && q[0].since.Before(before); q = q[1:] {
		if r, ok := j.rows[q[0].id]; ok {
			delete(j.rows, q[0].id)
			j.counts.lost++
			j.counts.lostValue += j.worth(r)
			j.add(r, nil, before)
		}
	}
	j.oldest.rows = q
	q = j.oldest.stacks
	for ; len(q) > 0 && q[0].since.Before(before); q = q[1:] {
		if _, ok := j.stacks[q[0].id]; ok {
			delete(j.stacks, q[0].id)
			j.counts.strays++
		}
	}
	j.oldest.stacks = q
}

// take removes and returns the joined rows, except the rows that keep selects.
func (j *joiner) take(keep func(*joined) bool) []*joined {
	out := make([]*joined, 0, len(j.sums))
	for key, s := range j.sums {
		if !keep(s) {
			out = append(out, s)
			delete(j.sums, key)
		}
	}
	clear(j.said.seen)
	return out
}
