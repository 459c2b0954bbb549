package profile

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

func tag(field int, wire protowire.Type) byte { return byte(field<<3) | byte(wire) } // fields up to 15 take one byte

func appendUint(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, tag(field, protowire.VarintType)), v)
}

func appendFixed64(b []byte, field int, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, tag(field, protowire.Fixed64Type)), v)
}

// appendString writes the field even if s is empty.
func appendString(b []byte, field int, s string) []byte {
	b = binary.AppendUvarint(append(b, tag(field, protowire.BytesType)), uint64(len(s)))
	return append(b, s...)
}

func appendMessage(b []byte, field int, m []byte) []byte {
	b = binary.AppendUvarint(append(b, tag(field, protowire.BytesType)), uint64(len(m)))
	return append(b, m...)
}

// sizeField returns the size of a length-delimited field with a body of n bytes, including tag and length.
func sizeField(n int) int { return 1 + protowire.SizeBytes(n) }

// appendPacked writes a packed repeated integer field. It writes nothing for an empty list.
func appendPacked[T int32 | int64](b []byte, field int, list []T) []byte {
	if len(list) == 0 {
		return b
	}
	n := 0
	for _, v := range list {
		n += protowire.SizeVarint(uint64(v))
	}
	b = binary.AppendUvarint(append(b, tag(field, protowire.BytesType)), uint64(n))
	for _, v := range list {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// appendAnyValue writes the body of an opentelemetry.proto.common.v1.AnyValue.
func appendAnyValue(b []byte, v Value) []byte {
	switch v.kind {
	case KindString:
		return appendString(b, 1, v.str)
	case KindBool: // oneof members are written even if they are zero
		return append(b, tag(2, protowire.VarintType), byte(v.num&1))
	case KindInt:
		return binary.AppendUvarint(append(b, tag(3, protowire.VarintType)), v.num)
	case KindDouble:
		return appendFixed64(b, 4, v.num)
	case KindBytes:
		return appendString(b, 7, v.str)
	case KindTexts: // an ArrayValue with one AnyValue
		size := sizeField(len(v.str))
		b = binary.AppendUvarint(append(b, tag(5, protowire.BytesType)), uint64(sizeField(size)))
		b = binary.AppendUvarint(append(b, tag(1, protowire.BytesType)), uint64(size))
		return appendString(b, 1, v.str)
	}
	return b
}

func sizeAnyValue(v Value) int {
	switch v.kind {
	case KindString, KindBytes:
		return sizeField(len(v.str))
	case KindBool:
		return 2
	case KindInt:
		return 1 + protowire.SizeVarint(v.num)
	case KindDouble:
		return 9
	case KindTexts:
		return sizeField(sizeField(sizeField(len(v.str))))
	}
	return math.MaxInt32
}
