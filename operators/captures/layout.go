package captures

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/btf"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

// These constants describe the head of a capture, struct profiles_capture in gadgets/include/capture.h.
const (
	atTime    = 0
	atID      = 8
	atStack   = 16
	atStretch = 24
	headSize  = 32
)

// fellBack replaces the stack's ID if the program used frame pointers instead of the unwinder. Real IDs are larger.
const fellBack = 1

// These constants describe struct profiles_user_stack in gadgets/include/stack_maps.h. It has the same members as Inspektor
// Gadget's gadget_user_stack.
const (
	atInode     = 8
	atMtimeSec  = 16
	atMtimeNsec = 24
	atSpace     = 28
	atStackID   = 32
	atPID       = 36
	userSize    = 72
)

// mostMembers is the maximum number of sums in a row.
const mostMembers = 16

// layout holds the offsets within the key and the value of a gadget's rows.
type layout struct {
	key, value int // sizes in bytes
	// In the key.
	stackKey int
	unwound  int
	comm     int
	attached int // offset; -1 if the key lacks this member
	kind     int // offset; -1 if the key lacks this member
	// In the value.
	user [2]int // offsets of both forms of the user stack
	sums []int
}

// layoutOf derives the layout from the types of the map rows. sums lists the value's members to add up. kind names the key's
// member that holds the kind, or is "".
func layoutOf(key, value *btf.Struct, sums []string, kind string) (layout, error) {
	l := layout{key: int(key.Size), value: int(value.Size), attached: -1, kind: -1}
	for _, m := range []struct {
		in       *btf.Struct
		name     string
		size     int
		at       *int
		optional bool
	}{
		{key, "user_stack_key", 8, &l.stackKey, false},
		{key, "unwound_id", 8, &l.unwound, false},
		{key, "proc", 16, &l.comm, false},
		{key, "attached_raw", 4, &l.attached, true},
		{key, kind, 4, &l.kind, kind == ""},
		{value, "user_stack_raw", userSize, &l.user[0], false},
		{value, "user_stack_id", userSize, &l.user[1], false},
	} {
		at, err := unwinder.Member(m.in, m.name, m.size)
		if err == nil {
			*m.at = at
		} else if !m.optional {
			return layout{}, err
		}
	}
	if len(sums) > mostMembers {
		return layout{}, fmt.Errorf("sums: %d members, more than the limit of %d", len(sums), mostMembers)
	}
	for _, name := range sums {
		at, err := unwinder.Member(value, name, 8)
		if err != nil {
			return layout{}, err
		}
		l.sums = append(l.sums, at)
	}
	return l, nil
}

// record is a parsed capture. It shares memory with the input.
type record struct {
	data       []byte
	key, value []byte
	user       []byte // the form of the user stack that contains data, if any
}

var order = binary.LittleEndian

// parse parses a capture.
func (l *layout) parse(data []byte) (record, error) {
	if len(data) < headSize+l.key+l.value {
		return record{}, fmt.Errorf("a sampled event of %d bytes is too short", len(data))
	}
	r := record{data: data, key: data[headSize:][:l.key:l.key], value: data[headSize+l.key:][:l.value:l.value]}
	r.user = r.value[l.user[0]:][:userSize]
	if u := r.value[l.user[1]:][:userSize]; order.Uint32(u[atPID:]) != 0 {
		r.user = u
	}
	return r, nil
}

func (r *record) time() uint64    { return order.Uint64(r.data[atTime:]) }
func (r *record) id() uint64      { return order.Uint64(r.data[atID:]) }
func (r *record) stackID() uint64 { return order.Uint64(r.data[atStack:]) }
func (r *record) stretch() uint32 { return order.Uint32(r.data[atStretch:]) }

// process returns the capture's process, as the gadget's program recorded it.
func (r *record) process() procmap.Process {
	return procmap.Process{
		PID: order.Uint32(r.user[atPID:]), ExeInode: order.Uint64(r.user[atInode:]), Space: order.Uint32(r.user[atSpace:]),
		ExeModified: int64(order.Uint64(r.user[atMtimeSec:])*1e9) + int64(order.Uint32(r.user[atMtimeNsec:])),
	}
}
