package symtab

import (
	"encoding/binary"
)

// Names holds texts by number. Each name is kept as the length of its common prefix with the one before, and the rest. Neighbours
// in a program begin alike (package, class). This takes 0.4 of the memory for Go's names, and 0.7 for those of C++.
type Names struct {
	Block  []byte
	groups []uint32 // where in block each group of nameGroup texts begins, the first of them in full
	Count  int
}

const nameGroup = 16

// Namer makes names.
type Namer struct {
	Names
	last []byte
}

// Add adds a text.
func (n *Namer) Add(text []byte) {
	shared := 0
	if n.Count%nameGroup == 0 {
		n.groups = append(n.groups, uint32(len(n.Block)))
	} else {
		for shared < len(n.last) && shared < len(text) && n.last[shared] == text[shared] {
			shared++
		}
	}
	n.Block = binary.AppendUvarint(n.Block, uint64(shared))
	n.Block = binary.AppendUvarint(n.Block, uint64(len(text)-shared))
	n.Block = append(n.Block, text[shared:]...)
	n.last = append(n.last[:0], text...)
	n.Count++
}

// Finish returns the names, with no more room than they need.
func (n *Namer) Finish() *Names {
	return &Names{Block: append([]byte(nil), n.Block...), groups: append([]uint32(nil), n.groups...), Count: n.Count}
}

// Get returns the i-th text.
func (n *Names) Get(i int) string {
	var room [256]byte
	text := room[:0]
	b := n.Block[n.groups[i/nameGroup]:]
	for range i%nameGroup + 1 {
		shared, w := binary.Uvarint(b)
		b = b[w:]
		length, w := binary.Uvarint(b)
		b = b[w:]
		text = append(text[:shared], b[:length]...)
		b = b[length:]
	}
	return string(text)
}

func (n *Names) bytes() int64 { return int64(cap(n.Block)) + 4*int64(cap(n.groups)) }
