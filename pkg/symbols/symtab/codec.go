package symtab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// ErrCodec is the error for an invalid encoded Table.
var ErrCodec = errors.New("the file reader has sent invalid data")

// Coder either writes or reads. Its methods encode their argument or decode into it. After an error, they do nothing.
type Coder struct {
	w    *bufio.Writer // nil when reading
	R    *bufio.Reader
	Left int64 // memory that decoded data may still use, in bytes
	Err  error
	// texts holds decoded texts, so equal texts share memory.
	texts map[string]string
	buf   [4 << 10]byte
}

func (c *Coder) reads() bool { return c.w == nil }

func (c *Coder) fail(err error) {
	if c.Err == nil {
		c.Err = err
	}
}

// check fails unless a decoded value is valid.
func (c *Coder) check(right bool, what string) {
	if c.reads() && !right && c.Err == nil {
		c.Err = fmt.Errorf("%w: %s", ErrCodec, what)
	}
}

// raw encodes the bytes of b or decodes into them.
func (c *Coder) raw(b []byte) {
	var err error
	switch {
	case c.Err != nil:
		return
	case c.reads():
		_, err = io.ReadFull(c.R, b)
	default:
		_, err = c.w.Write(b)
	}
	if err != nil {
		c.fail(err)
	}
}

func (c *Coder) u64(v *uint64) {
	b := c.buf[:8]
	binary.LittleEndian.PutUint64(b, *v)
	c.raw(b)
	if c.Err == nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// Number encodes or decodes a number of any integer type. most is the largest valid number.
func Number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint32 | ~uint64](c *Coder, v *T, most uint64) {
	n := uint64(*v)
	c.u64(&n)
	if c.check(n <= most, "a number that is too large"); c.Err == nil {
		*v = T(n)
	}
}

func (c *Coder) bool(v *bool) {
	n := uint8(0)
	if *v {
		n = 1
	}
	Number(c, &n, 1)
	*v = n == 1
}

// take accounts for n decoded items before they are allocated. each is an item's size in bytes. take returns false if the
// memory does not suffice.
func (c *Coder) take(n, each int) bool {
	if c.reads() && c.Err == nil {
		if n < 0 || int64(n) > c.Left/int64(max(each, 1)) {
			c.fail(fmt.Errorf("%w: more than fits in memory", ErrCodec))
			return false
		}
		c.Left -= int64(n) * int64(each)
	}
	return c.Err == nil
}

// items encodes or decodes the length of a list, which is at most most. When decoding, it also accounts for the items. each is
// an item's size in bytes.
func items[T any](c *Coder, l *[]T, most, each int) {
	n := len(*l)
	if Number(c, &n, uint64(most)); !c.take(n, each) || !c.reads() {
		return
	}
	if *l = nil; n > 0 {
		*l = make([]T, n)
	}
}

func (c *Coder) bytes(b *[]byte, most int) {
	items(c, b, most, 1)
	c.raw(*b)
}

func (c *Coder) u32s(l *[]uint32) {
	items(c, l, maxOf, 4)
	for rest := *l; len(rest) > 0 && c.Err == nil; {
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

func (c *Coder) text(s *string, most int) {
	b := []byte(*s)
	if c.bytes(&b, most); c.Err != nil || !c.reads() {
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

// maxOf is larger than any list.
const maxOf = math.MaxInt32

// table encodes or decodes a Table.
func (c *Coder) table(t *Table) {
	c.text(&t.Wanted, maxBuildID)
	c.check(t.Wanted == "" || DebugKey{ID: t.Wanted}.Valid(), "an invalid build ID")
	Number(c, &t.Read, math.MaxInt64)
	c.u64(&t.Edges)
	c.bool(&t.Cut)
	c.bytes(&t.Fact, MaxFact)
	golang := t.Golang != nil
	if c.bool(&golang); golang && c.Err == nil {
		if c.reads() {
			t.Golang = &GoTable{}
		}
		c.golang(t.Golang)
	}
	c.layers(t)
	lines := t.Lines != nil
	if c.bool(&lines); lines && c.Err == nil {
		if c.reads() {
			t.Lines = &Positions{}
		}
		c.positions(t.Lines)
	}
}

func (c *Coder) layers(t *Table) {
	var all []*Names
	for i := range t.Layers {
		if n := t.Layers[i].Names; len(all) == 0 || all[len(all)-1] != n {
			all = append(all, n)
		}
	}
	items(c, &all, MaxLayers, 64)
	for i := range all {
		if c.reads() {
			all[i] = new(Names)
		}
		c.names(all[i])
	}
	items(c, &t.Layers, MaxLayers, 128)
	at := 0
	for i := range t.Layers {
		l := &t.Layers[i]
		Number(c, &l.Source, uint64(numSources)-1)
		c.u64(&l.Base)
		c.u32s(&l.Starts)
		c.u32s(&l.Sizes)
		c.u32s(&l.Texts)
		if at < len(all) && l.Names != nil && l.Names != all[at] {
			at++
		}
		Number(c, &at, uint64(max(len(all)-1, 0)))
		if c.Err != nil || !c.reads() {
			continue
		}
		if c.check(at < len(all) && len(l.Sizes) == len(l.Starts) && len(l.Texts) == len(l.Starts), "a layer with inconsistent lists"); c.Err != nil {
			return
		}
		l.Names = all[at]
		c.below(l.Texts, l.Names.Count)
	}
}

// below fails unless each decoded number is below n or in none.
func (c *Coder) below(numbers []uint32, n int, none ...uint32) {
	if c.reads() && c.Err == nil {
		c.check(!slices.ContainsFunc(numbers, func(v uint32) bool { return uint64(v) >= uint64(n) && !slices.Contains(none, v) }), "a reference outside its table")
	}
}

func (c *Coder) names(n *Names) {
	c.bytes(&n.Block, maxOf)
	c.u32s(&n.groups)
	if Number(c, &n.Count, math.MaxInt32); c.Err != nil || !c.reads() {
		return
	}
	c.check(n.sound(), "invalid names")
}

// maxText is the maximum length of a name in a Table: MaxName bytes and "@plt".
const maxText = MaxName + 16

// sound reports whether Get can return all texts.
func (n *Names) sound() bool {
	if len(n.groups) != (n.Count+nameGroup-1)/nameGroup {
		return false
	}
	at, last := 0, 0 // last is the length of the previous text
	for i := range n.Count {
		if i%nameGroup == 0 {
			if last = 0; n.groups[i/nameGroup] != uint32(at) {
				return false
			}
		}
		shared, w := binary.Uvarint(n.Block[at:])
		if w <= 0 || shared > uint64(last) {
			return false
		}
		at += w
		length, w := binary.Uvarint(n.Block[at:])
		if w <= 0 || length > maxText || length > uint64(len(n.Block)-at-w) {
			return false
		}
		at += w + int(length)
		if last = int(shared + length); last > maxText {
			return false
		}
	}
	return at == len(n.Block)
}

func (c *Coder) positions(p *Positions) {
	c.u64(&p.Base)
	c.names(&p.Files)
	items(c, &p.Pieces, maxOf, 12)
	c.bytes(&p.Rows, maxOf)
	for i := range p.Pieces {
		x := &p.Pieces[i]
		for _, v := range []*uint32{&x.Start, &x.End, &x.At} {
			Number(c, v, math.MaxUint32)
		}
		if c.check(uint64(x.At) <= uint64(len(p.Rows)), "an inlined call outside the lines"); c.Err != nil {
			return
		}
	}
	c.u32s(&p.Starts)
	c.u32s(&p.Sizes)
	c.u32s(&p.Calls)
	c.check(len(p.Sizes) == len(p.Starts) && len(p.Calls) == len(p.Starts), "inconsistent lists of inlined calls")
	items(c, &p.Inlined, maxOf, 16)
	c.below(p.Calls, len(p.Inlined), NoCall)
	c.names(&p.Names)
	for i := range p.Inlined {
		x := &p.Inlined[i]
		for _, v := range []*uint32{&x.Name, &x.File, &x.Line, &x.Parent} {
			Number(c, v, math.MaxUint32)
		}
		if c.Err != nil {
			return
		}
		c.below([]uint32{x.Name}, p.Names.Count)
		c.below([]uint32{x.Parent}, len(p.Inlined), NoCall)
	}
}

// golang encodes or decodes a table of Go functions.
func (c *Coder) golang(t *GoTable) {
	c.goPlace(&t.GoPlace)
	c.u64(&t.Text)
	c.u32s(&t.Start)
	c.check(len(t.Start) > 1 && slices.IsSorted(t.Start), "unsorted functions of a Go program")
	c.goFuncs(&t.Loaded, &t.Size)
}

func (c *Coder) goPlace(p *GoPlace) {
	Number(c, &p.Version, uint64(Go120))
	for _, v := range []*uint64{
		&p.Quantum, &p.Pointer, &p.Functions, &p.TextStart, &p.FuncNames, &p.Units, &p.FileNames, &p.Pctab, &p.Program,
		&p.Offset, &p.End, &p.Text, &p.Calls, &p.CallsSize,
	} {
		c.u64(v)
	}
	c.check((p.Quantum == 1 || p.Quantum == 2 || p.Quantum == 4) && (p.Pointer == 4 || p.Pointer == 8), "an invalid header of a Go table")
}

// goFuncs encodes or decodes Go functions by number, and their size in bytes.
func (c *Coder) goFuncs(all *map[uint32]*GoFunc, size *int64) {
	var numbers []uint32
	for n := range *all {
		numbers = append(numbers, n)
	}
	c.u32s(&numbers)
	if c.reads() && c.Err == nil && len(numbers) > 0 {
		*all = make(map[uint32]*GoFunc)
	}
	for _, n := range numbers {
		if c.Err != nil {
			return
		}
		f := (*all)[n]
		known := f != nil
		if c.bool(&known); known && c.Err == nil {
			if c.reads() {
				f = new(GoFunc)
			}
			if c.take(1, 256) {
				c.goFunc(f)
			}
		}
		if c.reads() {
			(*all)[n] = f
			*size += f.Bytes()
		}
	}
}

func (c *Coder) goFunc(f *GoFunc) {
	c.text(&f.Name, MaxName)
	Number(c, &f.Start, math.MaxInt32)
	for _, p := range []*GoPairs{&f.File, &f.Line, &f.Inlined} {
		c.bytes(&p.B, MaxGoValues)
		items(c, &p.Resume, MaxGoValues, 12)
		for i := range p.Resume {
			r := &p.Resume[i]
			Number(c, &r.at, uint64(len(p.B)))
			Number(c, &r.Pc, math.MaxUint32)
			value := uint32(r.Value)
			Number(c, &value, math.MaxUint32)
			r.Value = int32(value)
		}
	}
	files := make([]int32, 0, len(f.Files))
	for n := range f.Files {
		files = append(files, n)
	}
	if items(c, &files, MaxGoFiles, 64); c.reads() && c.Err == nil {
		f.Files = make(map[int32]string, len(files))
	}
	for _, n := range files {
		at := uint32(n)
		Number(c, &at, math.MaxUint32)
		path := f.Files[n]
		if c.text(&path, MaxPath); c.Err != nil {
			return
		}
		f.Files[int32(at)] = path
	}
	items(c, &f.Calls, Chunk, 24)
	for i := range f.Calls {
		Number(c, &f.Calls[i].At, math.MaxUint32)
		Number(c, &f.Calls[i].Start, math.MaxInt32)
		c.text(&f.Calls[i].Name, MaxName)
	}
	c.bool(&f.NoCalls)
}
