package stack

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// UserOptions are the settings of a User. The zero value is enough for Append of a gadget_user_stack.
type UserOptions struct {
	// Plain is for a text of the form "leaf; caller; … " in a field of another type. Append drops empty entries, and frames get no
	// type, because their origin is unknown.
	Plain bool
	// Map returns the gadget's map that holds the addresses of stacks. BuildIDs returns the map that holds a struct
	// bpf_stack_build_id for each address. AppendID uses one ID for both maps. Map and BuildIDs can be nil or return nil, for
	// example before the gadget has started.
	Map, BuildIDs func() *ebpf.Map
}

// recordedDepth is the maximum number of addresses that the kernel records per stack (kernel.perf_event_max_stack) and that
// Inspektor Gadget's maps can hold. A stack with this depth was probably cut.
const recordedDepth = 127

// User turns user stacks into frames. It is not safe for concurrent use. Each field of a data source has its own User.
//
// # Content of a frame
//
// If the build ID is known, the Mapping contains it. Address is then the file offset that the kernel recorded with the build ID
// (BPF_F_USER_BUILD_ID), and not the virtual address in ELF symbol tables. To get that address, add p_vaddr and subtract
// p_offset of the segment that contains the offset. The offset is equal in all processes, so their frames merge.
//
// If the build ID is not known, Mapping is zero, and Address is the instruction pointer in the process. It is only meaningful
// with the process's memory map.
//
// Frames with and without a symbol never share a Mapping: see profile.Mapping.Symbolized.
//
// The type is profile.FrameNative, because neither a build ID nor names prove that a program was written in Go.
type User struct {
	opts  UserOptions
	split splitter
	addrs []uint64
	ids   []buildID
	known map[string]string

	// Only AppendID uses these.
	key     uint32
	records []buildIDRecord
}

// buildID is an entry in the list of build IDs: an ID and an offset, or only an address.
type buildID struct {
	id     string
	offset uint64
}

// maxKnownIDs limits the number of cached build IDs.
const maxKnownIDs = 4096

// NewUser returns a User.
func NewUser(opts UserOptions) *User {
	return &User{opts: opts, known: make(map[string]string)}
}

// Addresses returns the process's addresses of the first n frames of the last Append or AppendID. An unknown address is 0. If
// the frames have no addresses, the result is empty. The result is valid until the next call.
func (u *User) Addresses(n int) []uint64 {
	if len(u.addrs) == 0 {
		return nil
	}
	return u.addrs[:min(n, len(u.addrs))]
}

// Append appends the frames of a stack to dst, leaf first, from the three texts of a gadget_user_stack:
//   - symbols contains names, or hexadecimal addresses for unknown names.
//   - addresses contains entries such as "0x00007f12a4b3c2d1; ".
//   - buildIDs contains entries such as "<build ID> +<offset>; ", or "<address>; " for code outside files with build IDs.
//
// Each text can be empty. If all are empty, the outcome is Empty. Missing then determines from the stack's ID whether a stack
// was lost.
//
// Addresses and build IDs have the same order. The list of build IDs can be shorter, so the last frames can lack a build ID.
// The meaning of symbols depends on their number:
//   - If it equals the number of addresses, they have the same order.
//   - If it is smaller or zero, the first entries correspond, and the other frames have no name.
//   - If it is larger, an unwinder for interpreters has replaced the stack, so addresses and build IDs belong to other frames. The
//     frames then only have names, and no type.
//
// The names of frames are parts of symbols. Clone names that you keep.
func (u *User) Append(dst []profile.Frame, symbols, addresses, buildIDs []byte) ([]profile.Frame, Outcome) {
	u.addrs, u.ids = u.addrs[:0], u.ids[:0]
	cutAddrs := eachEntry(addresses, func(entry []byte) {
		addr, _ := parseAddress(view(entry))
		u.addrs = append(u.addrs, addr)
	})
	cutIDs := eachEntry(buildIDs, func(entry []byte) { u.ids = append(u.ids, u.readBuildID(entry)) })
	if len(u.addrs) == 0 {
		// The list of build IDs contains the addresses of code outside files.
		for _, id := range u.ids {
			addr := id.offset
			if id.id != "" {
				addr = 0
			}
			u.addrs = append(u.addrs, addr)
		}
	}
	text, truncated := limitText(symbols)
	truncated = truncated || cutAddrs || cutIDs || len(u.addrs) == recordedDepth
	want := -1
	if len(u.addrs) > 0 {
		want = len(u.addrs)
	}
	spans := u.split.split(text, want)
	truncated = truncated || len(spans) > MaxFrames
	if u.opts.Plain {
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.start == s.end })
	}

	frameType := profile.FrameNative
	if u.opts.Plain || want > 0 && len(spans) > want {
		frameType = ""
		u.addrs, u.ids = u.addrs[:0], u.ids[:0]
	}
	n := min(max(len(spans), len(u.addrs)), MaxFrames)
	if n == 0 {
		return dst, Empty
	}
	dst = slices.Grow(dst, n)
	for i := range n {
		dst = dst[:len(dst)+1]
		f := &dst[len(dst)-1]
		*f = profile.Frame{Type: frameType}
		if i < len(spans) {
			entry := text[spans[i].start:spans[i].end]
			f.Name = functionName(entry)
			if addr, ok := parseAddress(entry); ok {
				f.Address = userAddress(addr)
			}
		}
		if !u.locate(f, i) {
			return dst[:len(dst)-1], OK // the stack ends here, and later records do not belong to it
		}
	}
	if truncated {
		return dst, Truncated
	}
	return dst, OK
}

// locate sets the address and the mapping of frame i. The frame's Name is already final. It returns false if the stack ends
// before this frame.
func (u *User) locate(f *profile.Frame, i int) bool {
	if i < len(u.addrs) {
		if i > 0 && f.Name == "" && (i >= len(u.ids) || u.ids[i].id == "") && nowhere(u.addrs[i]) {
			return false
		}
		f.Address = userAddress(u.addrs[i])
	}
	if i < len(u.ids) && u.ids[i].id != "" {
		f.Address = u.ids[i].offset
		f.Mapping = profile.Mapping{GNUBuildID: u.ids[i].id, Symbolized: f.Name != ""}
	} else if f.Name == "" && f.Address == 0 {
		f.Name = Unknown
	}
	return true
}

// nowhere reports whether a known address cannot be code. The kernel follows frame pointers. If a program's outermost function
// has none, like _start, the kernel continues with an arbitrary register value, such as a canary or a counter. The stack ends
// before that address.
func nowhere(addr uint64) bool {
	return addr != 0 && (addr < lowestCode || addr > highestCode)
}

// lowestCode is the lowest mmap_min_addr of Linux, because the first page never belongs to a program. highestCode exceeds every
// user address space (at most 57 bits on x86-64 and 56 on arm64).
const (
	lowestCode  = 4096
	highestCode = 1<<57 - 1
)

// eachEntry calls add with each entry of a list, and reports whether the list was too long.
func eachEntry(list []byte, add func(entry []byte)) (truncated bool) {
	var entry []byte
	for i := 0; len(list) > 0; i++ {
		if i == MaxFrames {
			return true
		}
		entry, list, _ = bytes.Cut(list, []byte(separator))
		add(entry)
	}
	return false
}

func (u *User) readBuildID(entry []byte) buildID {
	id, offset, ok := bytes.Cut(entry, []byte(" +"))
	if !ok {
		addr, _ := parseHex(view(entry))
		return buildID{offset: userAddress(addr)}
	}
	off, ok := parseHex(view(offset))
	if !ok {
		return buildID{}
	}
	return buildID{id: u.knownID(id), offset: off}
}

// knownID returns a build ID in the form that a Mapping requires, or "" if it is invalid.
func (u *User) knownID(raw []byte) string {
	if id, ok := u.known[string(raw)]; ok {
		return id
	}
	if len(u.known) >= maxKnownIDs {
		clear(u.known)
	}
	if len(raw) > 2*buildIDSize {
		return ""
	}
	id := formatBuildID(string(raw))
	u.known[string(raw)] = id
	return id
}

// buildIDSize is BPF_BUILD_ID_SIZE in bytes (include/uapi/linux/bpf.h).
const buildIDSize = 20

// formatBuildID returns a build ID in lower case and without padding, or "" if it is invalid. The kernel pads short IDs with
// zeros to 20 bytes. Linkers create IDs of 20, 16 (MD5, UUID) and 8 bytes (lld's --build-id=fast). That many trailing zeros are
// padding and not part of a hash.
func formatBuildID(s string) string {
	if _, err := hex.DecodeString(s); err != nil {
		return ""
	}
	if len(s) == 2*buildIDSize {
		for _, size := range []int{0, 8, 16} {
			if strings.Trim(s[2*size:], "0") == "" {
				s = s[:2*size]
				break
			}
		}
	}
	return strings.ToLower(s)
}

// userAddress returns addr, or 0 if addr is outside the user address space. The upper half belongs to the kernel, whose
// addresses stay secret.
func userAddress(addr uint64) uint64 {
	if addr>>63 != 0 {
		return 0
	}
	return addr
}
