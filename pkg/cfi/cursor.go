package cfi

import "encoding/binary"

// cursor decodes bytes from the front to the back. After what is not there, or is refused, bad is set, and all is 0.
type cursor struct {
	b    []byte
	at   int
	base uint64 // the ELF virtual address of b[0]
	bad  bool
}

// take returns the next n bytes.
func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)-c.at) {
		c.bad = true
		return nil
	}
	b := c.b[c.at : c.at+int(n)]
	c.at += int(n)
	return b
}

func (c *cursor) more() bool { return !c.bad && c.at < len(c.b) }

func (c *cursor) u8() uint8 {
	if c.bad || c.at >= len(c.b) {
		c.bad = true
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// uleb decodes an unsigned LEB128 number. One that does not fit in 64 bits is refused.
func (c *cursor) uleb() uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b := c.u8()
		if c.bad || shift > 63 {
			c.bad = true
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return v
		}
	}
}

// sleb decodes a signed LEB128 number.
func (c *cursor) sleb() int64 {
	var v int64
	for shift := uint(0); ; {
		b := c.u8()
		if c.bad || shift > 63 {
			c.bad = true
			return 0
		}
		v |= int64(b&0x7f) << shift
		shift += 7
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift < 64 {
				v |= -1 << shift
			}
			return v
		}
	}
}

// Encodings of pointers: a format in the low half, what it is relative to in the high half.
const (
	peAbsolute = 0x00
	peULEB     = 0x01
	peUData2   = 0x02
	peUData4   = 0x03
	peUData8   = 0x04
	peSLEB     = 0x09
	peSData2   = 0x0a
	peSData4   = 0x0b
	peSData8   = 0x0c
	pePCRel    = 0x10
	peDataRel  = 0x30
	peOmit     = 0xff
)

// pointer decodes an encoded pointer. data is what those are relative to that are relative to data; 0: they are refused.
// So are those to a place that holds the pointer.
func (c *cursor) pointer(encoding uint8, data uint64) uint64 {
	from := c.base + uint64(c.at)
	v := c.number(encoding)
	switch encoding & 0xf0 {
	case 0:
	case pePCRel:
		v += from
	case peDataRel:
		c.bad = c.bad || data == 0
		v += data
	default:
		c.bad = true
	}
	if c.bad {
		return 0
	}
	return v
}

// number decodes the number of an encoded pointer, without what it is relative to.
func (c *cursor) number(encoding uint8) uint64 {
	switch encoding & 0x0f {
	case peAbsolute, peUData8, peSData8:
		return c.u64()
	case peULEB:
		return c.uleb()
	case peUData2:
		return uint64(c.u16())
	case peUData4:
		return uint64(c.u32())
	case peSLEB:
		return uint64(c.sleb())
	case peSData2:
		return uint64(int16(c.u16()))
	case peSData4:
		return uint64(int32(c.u32()))
	}
	c.bad = true
	return 0
}
