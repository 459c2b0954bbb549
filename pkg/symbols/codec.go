package symbols

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// A Table is written by one process and read by another, on the same machine and of the same build. The one that writes has read a
// hostile file, and may have become hostile by that. So whoever reads bounds what it takes of memory, and checks every number that
// something is found by: a Table that was read answers any look-up without a panic, though maybe with a wrong name.

// errCodec says that a Table was written wrong.
var errCodec = errors.New("what reads files has written nonsense")

// coder writes or reads: each of its methods does one or the other with what it is given. After an error it does nothing.
type coder struct {
	w    *bufio.Writer // nil: it reads
	r    *bufio.Reader
	left int64 // how many bytes of memory may still be taken by what is read
	err  error
	// texts keeps texts that were read, so that equal ones are one.
	texts map[string]string
	buf   [4 << 10]byte
}

func (c *coder) reads() bool { return c.w == nil }

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// check fails unless what was read is right.
func (c *coder) check(right bool, what string) {
	if c.reads() && !right && c.err == nil {
		c.err = fmt.Errorf("%w: %s", errCodec, what)
	}
}

// raw is the bytes of b.
func (c *coder) raw(b []byte) {
	var err error
	switch {
	case c.err != nil:
		return
	case c.reads():
		_, err = io.ReadFull(c.r, b)
	default:
		_, err = c.w.Write(b)
	}
	if err != nil {
		c.fail(err)
	}
}

func (c *coder) u64(v *uint64) {
	b := c.buf[:8]
	binary.LittleEndian.PutUint64(b, *v)
	c.raw(b)
	if c.err == nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// number is a number of any type that is not above most.
func number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint32 | ~uint64](c *coder, v *T, most uint64) {
	n := uint64(*v)
	c.u64(&n)
	if c.check(n <= most, "a number that is too large"); c.err == nil {
		*v = T(n)
	}
}

func (c *coder) bool(v *bool) {
	n := uint8(0)
	if *v {
		n = 1
	}
	number(c, &n, 1)
	*v = n == 1
}

// take is called before n things of so many bytes are taken for what is read. It returns false if they may not be.
func (c *coder) take(n, each int) bool {
	if c.reads() && c.err == nil {
		if n < 0 || int64(n) > c.left/int64(max(each, 1)) {
			c.fail(fmt.Errorf("%w: more than there is room for", errCodec))
			return false
		}
		c.left -= int64(n) * int64(each)
	}
	return c.err == nil
}

// items is how many things a list has, no more than most. What is read has room for them, of so many bytes each.
func items[T any](c *coder, l *[]T, most, each int) {
	n := len(*l)
	if number(c, &n, uint64(most)); !c.take(n, each) || !c.reads() {
		return
	}
	if *l = nil; n > 0 {
		*l = make([]T, n)
	}
}

func (c *coder) bytes(b *[]byte, most int) {
	items(c, b, most, 1)
	c.raw(*b)
}

func (c *coder) u32s(l *[]uint32) {
	items(c, l, maxOf, 4)
	for rest := *l; len(rest) > 0 && c.err == nil; {
		n := min(len(rest), len(c.buf)/4)
		b := c.buf[:4*n]
		if !c.reads() {
			for i, v := range rest[:n] {
				binary.LittleEndian.PutUint32(b[4*i:], v)
			}
		}
		if c.raw(b); c.reads() {
			for i := range rest[:n] {
				rest[i] = binary.LittleEndian.Uint32(b[4*i:])
			}
		}
		rest = rest[n:]
	}
}

func (c *coder) text(s *string, most int) {
	b := []byte(*s)
	if c.bytes(&b, most); c.err != nil || !c.reads() {
		return
	}
	known, ok := c.texts[string(b)]
	if !ok {
		if c.texts == nil {
			c.texts = map[string]string{}
		}
		known = string(b)
		c.texts[known] = known
	}
	*s = known
}

// maxOf is more than any list has.
const maxOf = math.MaxInt32

// table is a whole Table.
func (c *coder) table(t *Table) {
	items(c, &t.loads, maxSegments, 24)
	for i := range t.loads {
		l := &t.loads[i]
		c.u64(&l.offset)
		c.u64(&l.size)
		c.u64(&l.addr)
	}
	c.bool(&t.inlined)
	c.text(&t.wanted, maxBuildID)
	c.check(t.wanted == "" || debugKey{id: t.wanted}.valid(), "a build ID")
	number(c, &t.read, math.MaxInt64)
	c.u64(&t.edges)
	c.bool(&t.cut)
	golang := t.golang != nil
	if c.bool(&golang); golang && c.err == nil {
		if c.reads() {
			t.golang = &goTable{}
		}
		c.golang(t.golang)
	}
	c.layers(t)
	lines := t.lines != nil
	if c.bool(&lines); lines && c.err == nil {
		if c.reads() {
			t.lines = &positions{}
		}
		c.positions(t.lines)
	}
}

func (c *coder) layers(t *Table) {
	var all []*names
	for i := range t.layers {
		if n := t.layers[i].names; len(all) == 0 || all[len(all)-1] != n {
			all = append(all, n)
		}
	}
	items(c, &all, maxLayers, 64)
	for i := range all {
		if c.reads() {
			all[i] = new(names)
		}
		c.names(all[i])
	}
	items(c, &t.layers, maxLayers, 128)
	at := 0
	for i := range t.layers {
		l := &t.layers[i]
		number(c, &l.source, uint64(numSources)-1)
		c.u64(&l.base)
		c.u32s(&l.starts)
		c.u32s(&l.sizes)
		c.u32s(&l.texts)
		number(c, &l.first, math.MaxInt32)
		if at < len(all) && l.names != nil && l.names != all[at] {
			at++
		}
		number(c, &at, uint64(max(len(all)-1, 0)))
		if c.err != nil || !c.reads() {
			continue
		}
		if c.check(at < len(all) && len(l.sizes) == len(l.starts) && (l.texts == nil || len(l.texts) == len(l.starts)), "a layer"); c.err != nil {
			return
		}
		l.names = all[at]
		if l.texts == nil {
			c.check(l.first+len(l.starts) <= l.names.count, "a layer's names")
		} else {
			c.below(l.texts, l.names.count)
		}
	}
}

// below fails if one of the numbers that were read is not below n. The number none is allowed, too.
func (c *coder) below(numbers []uint32, n int, none ...uint32) {
	if c.reads() && c.err == nil {
		c.check(!slices.ContainsFunc(numbers, func(v uint32) bool { return uint64(v) >= uint64(n) && !slices.Contains(none, v) }), "a reference")
	}
}

func (c *coder) names(n *names) {
	c.bytes(&n.block, maxOf)
	c.u32s(&n.groups)
	if number(c, &n.count, math.MaxInt32); c.err != nil || !c.reads() {
		return
	}
	c.check(n.sound(), "names")
}

// maxText is how long a name can be in a Table: one of maxName bytes, and "@plt".
const maxText = maxName + 16

// sound tells whether get works for each text.
func (n *names) sound() bool {
	if len(n.groups) != (n.count+nameGroup-1)/nameGroup {
		return false
	}
	at, last := 0, 0 // last is how long the text before is
	for i := range n.count {
		if i%nameGroup == 0 {
			if last = 0; n.groups[i/nameGroup] != uint32(at) {
				return false
			}
		}
		shared, w := binary.Uvarint(n.block[at:])
		if w <= 0 || shared > uint64(last) {
			return false
		}
		at += w
		length, w := binary.Uvarint(n.block[at:])
		if w <= 0 || length > maxText || length > uint64(len(n.block)-at-w) {
			return false
		}
		at += w + int(length)
		if last = int(shared + length); last > maxText {
			return false
		}
	}
	return at == len(n.block)
}

func (c *coder) positions(p *positions) {
	c.u64(&p.base)
	c.names(&p.files)
	items(c, &p.pieces, maxOf, 12)
	c.bytes(&p.rows, maxOf)
	for i := range p.pieces {
		x := &p.pieces[i]
		for _, v := range []*uint32{&x.start, &x.end, &x.at} {
			number(c, v, math.MaxUint32)
		}
		if c.check(uint64(x.at) <= uint64(len(p.rows)), "lines"); c.err != nil {
			return
		}
	}
	c.u32s(&p.starts)
	c.u32s(&p.sizes)
	c.u32s(&p.calls)
	c.check(len(p.sizes) == len(p.starts) && len(p.calls) == len(p.starts), "inlined calls")
	items(c, &p.inlined, maxOf, 16)
	c.below(p.calls, len(p.inlined), noCall)
	c.names(&p.names)
	for i := range p.inlined {
		x := &p.inlined[i]
		for _, v := range []*uint32{&x.name, &x.file, &x.line, &x.parent} {
			number(c, v, math.MaxUint32)
		}
		if c.err != nil {
			return
		}
		c.below([]uint32{x.name}, p.names.count)
		c.below([]uint32{x.parent}, len(p.inlined), noCall)
	}
}

// golang is a table of Go's functions.
func (c *coder) golang(t *goTable) {
	c.goPlace(&t.goPlace)
	c.u64(&t.text)
	c.u32s(&t.start)
	c.check(len(t.start) > 1 && slices.IsSorted(t.start), "Go's functions")
	c.goFuncs(&t.loaded, &t.size)
}

func (c *coder) goPlace(p *goPlace) {
	number(c, &p.version, uint64(go120))
	big := p.endian == binary.ByteOrder(binary.BigEndian)
	if c.bool(&big); c.reads() {
		p.endian = binary.LittleEndian
		if big {
			p.endian = binary.BigEndian
		}
	}
	for _, v := range []*uint64{
		&p.quantum, &p.pointer, &p.functions, &p.textStart, &p.funcNames, &p.units, &p.fileNames, &p.pctab, &p.program,
		&p.offset, &p.end, &p.text, &p.calls, &p.callsSize,
	} {
		c.u64(v)
	}
	c.check((p.quantum == 1 || p.quantum == 2 || p.quantum == 4) && (p.pointer == 4 || p.pointer == 8), "a Go table's header")
}

// goFuncs is Go's functions by their number, and how many bytes they take.
func (c *coder) goFuncs(all *map[uint32]*goFunc, size *int64) {
	var numbers []uint32
	for n := range *all {
		numbers = append(numbers, n)
	}
	c.u32s(&numbers)
	if c.reads() && c.err == nil && len(numbers) > 0 {
		*all = make(map[uint32]*goFunc)
	}
	for _, n := range numbers {
		if c.err != nil {
			return
		}
		f := (*all)[n]
		known := f != nil
		if c.bool(&known); known && c.err == nil {
			if c.reads() {
				f = new(goFunc)
			}
			if c.take(1, 256) {
				c.goFunc(f)
			}
		}
		if c.reads() {
			(*all)[n] = f
			*size += f.bytes()
		}
	}
}

func (c *coder) goFunc(f *goFunc) {
	c.text(&f.name, maxName)
	number(c, &f.start, math.MaxInt32)
	for _, p := range []*goPairs{&f.file, &f.line, &f.inlined} {
		c.bytes(&p.b, maxGoValues)
		items(c, &p.resume, maxGoValues, 12)
		for i := range p.resume {
			r := &p.resume[i]
			number(c, &r.at, uint64(len(p.b)))
			number(c, &r.pc, math.MaxUint32)
			value := uint32(r.value)
			number(c, &value, math.MaxUint32)
			r.value = int32(value)
		}
	}
	files := make([]int32, 0, len(f.files))
	for n := range f.files {
		files = append(files, n)
	}
	if items(c, &files, maxGoFiles, 64); c.reads() && c.err == nil {
		f.files = make(map[int32]string, len(files))
	}
	for _, n := range files {
		at := uint32(n)
		number(c, &at, math.MaxUint32)
		path := f.files[n]
		if c.text(&path, maxPath); c.err != nil {
			return
		}
		f.files[int32(at)] = path
	}
	items(c, &f.calls, chunk, 24)
	for i := range f.calls {
		number(c, &f.calls[i].at, math.MaxUint32)
		number(c, &f.calls[i].start, math.MaxInt32)
		c.text(&f.calls[i].name, maxName)
	}
	c.bool(&f.noCalls)
}
