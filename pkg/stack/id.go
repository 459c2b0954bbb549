package stack

import (
	"encoding/hex"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// buildIDRecord is struct bpf_stack_build_id (include/uapi/linux/bpf.h).
type buildIDRecord struct {
	Status int32
	ID     [buildIDSize]byte
	Where  uint64 // the offset in the file, or the address
}

// buildIDRecordSize is the size of a buildIDRecord in the map.
const buildIDRecordSize = 32

// The statuses of a buildIDRecord, BPF_STACK_BUILD_ID_*.
const (
	buildIDEmpty = iota
	buildIDValid
	buildIDAddress
)

// AppendID appends the frames of the stack with the given ID to dst, leaf first. It reads their addresses
// and build IDs from the gadget's maps and has them named by the Symbolizer, in contrast to Append. The
// ID is as the eBPF program stored it: 0 says that no stack was asked for, a negative number is an error.
//
// The error says why a stack's functions have no names: its frames are there all the same, so an
// outcome other than Lost and Empty is the stack's. Later, the same stack may have names.
//
// It costs one or two look-ups in maps and what the Symbolizer takes, for a program that it has not seen
// yet up to seconds: call it once per stack that is not yet known.
func (u *User) AppendID(dst []profile.Frame, id int32, task symbolizer.Task) ([]profile.Frame, Outcome, error) {
	if id <= 0 || !u.lookup(uint32(id)) {
		return dst, Missing(id, id != 0), nil
	}
	u.lookupBuildIDs(uint32(id))
	outcome := OK
	if m := mapOf(u.opts.Map, 8); m != nil && len(u.addrs) == int(m.ValueSize()/8) {
		outcome = Truncated // there is no room for more
	}
	if len(u.addrs) > MaxFrames {
		u.addrs, outcome = u.addrs[:MaxFrames], Truncated
	}
	names, err := u.resolve(task)
	for i := range u.addrs {
		f := profile.Frame{Type: profile.FrameNative}
		if i < len(names) && names[i].Found {
			f.Name = functionName(names[i].Symbol)
		}
		if !u.locate(&f, i) {
			break
		}
		dst = append(dst, f)
	}
	return dst, outcome, err
}

// resolve names the addresses.
func (u *User) resolve(task symbolizer.Task) ([]symbolizer.StackItemResponse, error) {
	if u.opts.Symbolizer == nil {
		return nil, nil
	}
	u.queries = u.queries[:0]
	for i, addr := range u.addrs {
		u.queries = append(u.queries, u.query(i, within(addr, i == 0)))
	}
	names, err := u.opts.Symbolizer.Resolve(task, u.queries)
	if err != nil {
		return nil, err
	}
	// A signal handler returns to the first byte of a function that nothing has called.
	u.queries, u.again = u.queries[:0], u.again[:0]
	for i := range min(len(names), len(u.addrs)) {
		if i > 0 && !names[i].Found {
			u.queries = append(u.queries, u.query(i, u.addrs[i]))
			u.again = append(u.again, i)
		}
	}
	if len(u.queries) == 0 {
		return names, nil
	}
	more, err := u.opts.Symbolizer.Resolve(task, u.queries)
	if err != nil || len(more) != len(u.again) {
		return names, nil
	}
	for j, i := range u.again {
		names[i] = more[j]
	}
	return names, nil
}

// query asks for the function at an address that belongs to frame i.
func (u *User) query(i int, addr uint64) symbolizer.StackItemQuery {
	q := symbolizer.StackItemQuery{Addr: addr}
	if i < len(u.records) {
		switch r := &u.records[i]; r.Status {
		case buildIDValid:
			q.ValidBuildID, q.BuildID, q.Offset = true, r.ID, r.Where
		case buildIDAddress:
			q.IP = r.Where
		}
	}
	return q
}

// lookup reads the addresses of a stack and reports whether it found any.
func (u *User) lookup(id uint32) bool {
	u.addrs = readStack(u.opts.Map, &u.key, id, u.addrs)
	return len(u.addrs) > 0
}

// readStack reads the addresses of a stack into buf, and returns none where there is no such stack. key is
// memory that stays, or the look-up would allocate.
func readStack(get func() *ebpf.Map, key *uint32, id uint32, buf []uint64) []uint64 {
	m := mapOf(get, 8)
	if m == nil {
		return buf[:0]
	}
	n := int(m.ValueSize() / 8)
	if cap(buf) < n {
		buf = make([]uint64, n)
	}
	buf, *key = buf[:n], id
	if err := m.Lookup(key, &buf); err != nil {
		return buf[:0]
	}
	if i := slices.Index(buf, 0); i >= 0 {
		buf = buf[:i]
	}
	return buf
}

// lookupBuildIDs reads the build IDs of a stack, if the gadget has recorded them.
func (u *User) lookupBuildIDs(id uint32) {
	u.ids = u.ids[:0]
	m := mapOf(u.opts.BuildIDs, buildIDRecordSize)
	if m == nil {
		u.records = u.records[:0]
		return
	}
	n := int(m.ValueSize()) / buildIDRecordSize
	if cap(u.records) < n {
		u.records = make([]buildIDRecord, n)
	}
	u.records, u.key = u.records[:n], id
	if err := m.Lookup(&u.key, &u.records); err != nil {
		u.records = u.records[:0]
		return
	}
	var digits [2 * buildIDSize]byte
	for i := range u.records {
		r := &u.records[i]
		switch r.Status {
		case buildIDValid:
			u.ids = append(u.ids, buildID{id: u.knownID(hex.AppendEncode(digits[:0], r.ID[:])), offset: r.Where})
		case buildIDAddress:
			u.ids = append(u.ids, buildID{offset: userAddress(r.Where)})
		default: // buildIDEmpty: the stack has ended
			u.records = u.records[:i]
			return
		}
	}
}

// mapOf returns the map if it is there and holds lists of entries of the given size under IDs.
func mapOf(get func() *ebpf.Map, entry int) *ebpf.Map {
	if get == nil {
		return nil
	}
	m := get()
	if m == nil || m.KeySize() != 4 || m.ValueSize() == 0 || int(m.ValueSize())%entry != 0 {
		return nil
	}
	switch m.Type() {
	case ebpf.StackTrace, ebpf.Hash, ebpf.LRUHash: // gadgets can keep stacks in maps of their own
		return m
	}
	return nil
}
