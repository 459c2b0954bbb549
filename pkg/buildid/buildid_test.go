package buildid

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected hashes come from another program: the SHA-256 of the parts, concatenated by hand.
func TestHTLHash(t *testing.T) {
	for _, tc := range []struct {
		name, content, want string
	}{
		{"empty", "", "af5570f5a1810b7af78caf4bc70a660f"},
		{"short: the ends are the same bytes", "hello", "b2c90e0c61910efa8c079b70039694de"},
		{"the ends overlap", strings.Repeat("ab", 3000), "76dcde6606172d8042948230a8675d05"},
		{"what is between the ends does not count", strings.Repeat("a", 4096) + "middle" + strings.Repeat("z", 4096), "ab00e1ab4c3c7c2984d6e0ec4db087b2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := HTLHash(strings.NewReader(tc.content), int64(len(tc.content)))
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	_, err := HTLHash(strings.NewReader("short"), 4097)
	require.Error(t, err, "a file that has shrunk")
}

// Check refuses impossible identifiers from the process that reads files.
func TestCheck(t *testing.T) {
	right := Info{GNU: "00ff", Go: "a/b", HTLHash: "0123456789abcdef0123456789abcdef", Code: []Segment{{}}}
	require.NoError(t, right.Check())
	for name, change := range map[string]func(*Info){
		"no hash": func(i *Info) { i.HTLHash = "" }, "a path": func(i *Info) { i.GNU = "../.." }, "an escape": func(i *Info) { i.Go = "\x1b[2J" },
		"not hexadecimal": func(i *Info) { i.HTLHash = "0123456789abcdeF0123456789abcdef" }, "long Go": func(i *Info) { i.Go = strings.Repeat("a", maxGo+1) },
		"long": func(i *Info) { i.GNU = strings.Repeat("0", 2*maxGNU+1) }, "much code": func(i *Info) { i.Code = make([]Segment, maxCode+1) },
	} {
		wrong := right
		change(&wrong)
		require.Error(t, wrong.Check(), name)
	}
}

func TestOffsets(t *testing.T) {
	info := Info{Code: []Segment{{Offset: 0x1100, Size: 0x100, Address: 0x401100}, {Offset: 0x1200, Size: 0x1000, Address: 0x501200}}}
	for _, tt := range []struct{ offset, address uint64 }{
		{0x1100, 0x401100}, {0x11ff, 0x4011ff}, {0x1200, 0x501200}, {0x21ff, 0x5021ff},
		{0x1000, 0x401000}, {0x2fff, 0x502fff}, // the rest of a loaded page
		{0xfff, 0}, {0x3000, 0},
	} {
		address, ok := info.Virtual(tt.offset)
		require.Equal(t, tt.address, address, "%#x", tt.offset)
		require.Equal(t, tt.address != 0, ok)
		if inside := tt.offset >= 0x1100 && tt.offset < 0x2200; inside {
			offset, ok := info.Offset(tt.address)
			require.True(t, ok)
			require.Equal(t, tt.offset, offset)
		}
	}
	for _, address := range []uint64{0x4010ff, 0x401200, 0x502200} {
		_, ok := info.Offset(address)
		require.False(t, ok, "%#x", address)
	}
	for range 2 * maxCode {
		info.AddCode(Segment{Size: 1})
	}
	require.Len(t, info.Code, maxCode)
}

func TestNotes(t *testing.T) {
	note := func(align int, kind uint32, name, desc string) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(desc)))
		b = append(binary.BigEndian.AppendUint32(b, kind), name...)
		for len(b)%align > 0 {
			b = append(b, 0)
		}
		for b = append(b, desc...); len(b)%align > 0; {
			b = append(b, 0)
		}
		return b
	}
	for _, align := range []int{4, 8} {
		var b []byte
		for _, n := range []struct {
			kind       uint32
			name, desc string
		}{
			{1, "GNU\x00", "another kind"}, {noteGNU, "XEN\x00", "another name"}, {noteGo, "Go\x00\x00", "with\x1b"}, {noteGNU, "GNU\x00", strings.Repeat("x", maxGNU+1)},
			{noteGNU, "GNU\x00", ""}, {noteGNU, "GNU\x00", "\x01\xff\x02"}, {noteGNU, "GNU\x00", "second"}, {noteGo, "Go\x00\x00", "a/b"}, {noteGo, "Go\x00\x00", "c/d"},
		} {
			b = append(b, note(align, n.kind, n.name, n.desc)...)
		}
		var info Info
		info.AddNotes(b, binary.BigEndian, uint64(align))
		require.Equal(t, Info{GNU: "01ff02", Go: "a/b"}, info)
		for cut := range b {
			var info Info
			info.AddNotes(b[:cut], binary.BigEndian, uint64(align))
			require.Contains(t, []string{"", "01ff02"}, info.GNU)
		}
	}
	last := note(4, noteGNU, "GNU\x00", "\x01\xff\x02\x03")
	var info Info
	info.AddNotes(last, binary.BigEndian, 1)
	require.Equal(t, "01ff0203", info.GNU)
	info = Info{}
	info.AddNotes(note(4, noteGNU, "GNU\x00", "\x01\xff\x02")[:12+4+3], binary.BigEndian, 4)
	require.Equal(t, "01ff02", info.GNU, "no padding at the end")
}
