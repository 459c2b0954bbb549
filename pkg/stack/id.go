package stack

import (
	"encoding/hex"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// buildIDRecord is struct bpf_stack_build_id (include/uapi/linux/bpf.h).
type buildIDRecord struct {
	Status int32
	ID     [buildIDSize]byte
	Where  uint64 // the offset in the file, or the address
}

// buildIDRecordSize is the size of a buildIDRecord in the map, in bytes.
const buildIDRecordSize = 32

// These are the values of buildIDRecord.Status, BPF_STACK_BUILD_ID_*.
const (
	buildIDEmpty = iota
	buildIDValid
	buildIDAddress
)

// AppendID appends the frames of the stack with the given ID to dst, leaf first. Unlike Append, it reads addresses and build
// IDs from the gadget's maps, and the frames have no names. The eBPF program has stored id. 0 means that no stack was
// collected, and a negative number is an error.
//
// It costs one or two map lookups, so call it once per unknown stack.
func (u *User) AppendID(dst []profile.Frame, id int32) ([]profile.Frame, Outcome) {
	u.addrs = u.addrs[:0]
	if id > 0 {
		u.addrs = readStack(u.opts.Map, &u.key, uint32(id), u.addrs)
	}
	if len(u.addrs) == 0 {
		return dst, Missing(id, id != 0)
	}
	u.lookupBuildIDs(uint32(id))
	outcome := OK
	if m := mapOf(u.opts.Map, 8); m != nil && len(u.addrs) == int(m.ValueSize()/8) {
		outcome = Truncated // the map has no room for more frames
	}
	if len(u.addrs) > MaxFrames {
		u.addrs, outcome = u.addrs[:MaxFrames], Truncated
	}
	for i := range u.addrs {
		f := profile.Frame{Type: profile.FrameNative}
		if !u.locate(&f, i) {
			return dst, OK // the stack ends here, and later records do not belong to it
		}
		dst = append(dst, f)
	}
	return dst, outcome
}

// readStack reads the addresses of a stack into buf, or none if the stack does not exist. key points to the caller's memory,
// because a local variable would be allocated for each lookup.
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

// lookupBuildIDs reads a stack's build IDs if the gadget recorded them.
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
		default: // buildIDEmpty: the stack ends here
			u.records = u.records[:i]
			return
		}
	}
}

// mapOf returns the map, or nil unless it maps IDs to lists of entries of the given size.
func mapOf(get func() *ebpf.Map, entry int) *ebpf.Map {
	if get == nil {
		return nil
	}
	m := get()
	if m == nil || m.KeySize() != 4 || m.ValueSize() == 0 || int(m.ValueSize())%entry != 0 {
		return nil
	}
	switch m.Type() {
	case ebpf.StackTrace, ebpf.Hash, ebpf.LRUHash: // gadgets can also keep stacks in their own hash maps
		return m
	}
	return nil
}
