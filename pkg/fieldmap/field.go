package fieldmap

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// maxValueBytes limits the text or bytes of an attribute. Pyroscope refuses label values over 2,048 bytes.
const maxValueBytes = 2048

// reader reads one field of a row. The zero value reads nothing.
type reader struct {
	acc   datasource.FieldAccessor
	kind  api.Kind
	order binary.ByteOrder
	width int  // of a number, in bytes; 0 for text and bytes
	cut   bool // the text ends at the first NUL
	errno bool // a stack ID: hash only distinguishes valid IDs from errors, and each error from the others
}

func newReader(ds datasource.DataSource, acc datasource.FieldAccessor) reader {
	r := reader{acc: acc, kind: acc.Type(), order: ds.ByteOrder()}
	switch r.kind {
	case api.Kind_Bool, api.Kind_Int8, api.Kind_Uint8:
		r.width = 1
	case api.Kind_Int16, api.Kind_Uint16:
		r.width = 2
	case api.Kind_Int32, api.Kind_Uint32, api.Kind_Float32:
		r.width = 4
	case api.Kind_Int64, api.Kind_Uint64, api.Kind_Float64:
		r.width = 8
	case api.Kind_CString:
		r.cut = true
	}
	return r
}

// same reports whether two readers of one data source read the same field in the same way.
func (r reader) same(o reader) bool {
	if r.acc == nil || o.acc == nil {
		return r.acc == nil && o.acc == nil
	}
	return r.acc.FullName() == o.acc.FullName() && r.cut == o.cut && r.errno == o.errno
}

// raw returns the memory of the field within the row. It panics if the row is shorter than the data source declares. See
// guarded.
func (r *reader) raw(d datasource.Data) []byte {
	b := r.acc.Get(d)
	if r.cut {
		if i := bytes.IndexByte(b, 0); i >= 0 {
			b = b[:i]
		}
	}
	return b
}

// bytes calls guarded or raw.
func (r *reader) bytes(d datasource.Data, guard bool) []byte {
	if guard {
		return r.guarded(d)
	}
	return r.raw(d)
}

// guarded is raw for untrusted rows: if the row is too short, the field is empty.
func (r *reader) guarded(d datasource.Data) (b []byte) {
	if r.acc == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			b = nil
		}
	}()
	return r.raw(d)
}

// hashBytes hashes b with a key. For a stack's text, it takes a third as long as maphash.Bytes, which hashes more than 128
// bytes in dependent pieces. maphash.Comparable hashes a string in one go.
func hashBytes(seed maphash.Seed, b []byte) uint64 {
	if len(b) <= 128 {
		return maphash.Bytes(seed, b)
	}
	return maphash.Comparable(seed, unsafe.String(unsafe.SliceData(b), len(b))) // Comparable does not retain the string
}

// text returns a copy of the field that does not alias the row.
func (r *reader) text(d datasource.Data) string { return string(r.guarded(d)) }

// load returns the bits of the number in b. Use signed for fields that can be negative. A number of the wrong length is read as
// 0.
func (r *reader) load(b []byte) uint64 {
	if len(b) != r.width {
		return 0
	}
	switch r.width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(r.order.Uint16(b))
	case 4:
		return uint64(r.order.Uint32(b))
	case 8:
		return r.order.Uint64(b)
	}
	return 0
}

// signed returns the integer in b. A uint64 above the largest int64 becomes the largest int64.
func (r *reader) signed(b []byte) int64 {
	u := r.load(b)
	switch r.kind {
	case api.Kind_Int8:
		return int64(int8(u))
	case api.Kind_Int16:
		return int64(int16(u))
	case api.Kind_Int32:
		return int64(int32(u))
	case api.Kind_Uint64:
		return int64(min(u, math.MaxInt64))
	}
	return int64(u)
}

// float returns the floating-point number in b.
func (r *reader) float(b []byte) float64 {
	if r.kind == api.Kind_Float32 {
		return float64(math.Float32frombits(uint32(r.load(b))))
	}
	return math.Float64frombits(r.load(b))
}

// value returns the field as an attribute's value. It returns false for an empty text or a missing number.
func (r *reader) value(d datasource.Data) (profile.Value, bool) {
	b := r.guarded(d)
	if len(b) == 0 || r.width > 0 && len(b) != r.width {
		return profile.Value{}, false
	}
	switch r.kind {
	case api.Kind_String, api.Kind_CString:
		return textValue(string(b[:min(len(b), 2*maxValueBytes)]))
	case api.Kind_Bytes:
		return profile.Bytes(b[:min(len(b), maxValueBytes)]), true
	case api.Kind_Bool:
		return profile.Bool(b[0] != 0), true
	case api.Kind_Float32, api.Kind_Float64:
		return profile.Double(r.float(b)), true
	case api.Kind_Uint64:
		if u := r.load(b); u > math.MaxInt64 {
			return profile.String(strconv.FormatUint(u, 10)), true
		}
	}
	return profile.Int(r.signed(b)), true
}

// single reports whether the field holds one value, and not an array or a struct.
func (r *reader) single() bool {
	switch r.kind {
	case api.Kind_String, api.Kind_CString:
		return true
	case api.Kind_Bytes:
		return len(r.acc.SubFields()) == 0
	}
	return r.width > 0
}

// textValue returns s as an attribute's value: valid UTF-8 of at most maxValueBytes. It returns false if s is blank.
func textValue(s string) (profile.Value, bool) {
	s = clip(s)
	return profile.String(s), strings.TrimSpace(s) != ""
}

// clip makes s valid UTF-8 and cuts it between runes to at most maxValueBytes.
func clip(s string) string {
	return printable.Cut(strings.ToValidUTF8(s, "\uFFFD"), maxValueBytes)
}
