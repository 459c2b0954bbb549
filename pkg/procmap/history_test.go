package procmap

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRanges(t *testing.T) {
	a, b, c := &file{}, &file{}, &file{}
	l := &life{}
	l.add(mapped{100, 200, 1000, a})
	l.add(mapped{300, 400, 0, b})
	l.add(mapped{150, 160, 0, c}) // into the middle
	require.Equal(t, []mapped{{100, 150, 1000, a}, {150, 160, 0, c}, {160, 200, 1060, a}, {300, 400, 0, b}}, l.ranges)
	l.add(mapped{190, 310, 5, c})
	require.Equal(t, []mapped{{100, 150, 1000, a}, {150, 160, 0, c}, {160, 190, 1060, a}, {190, 310, 5, c}, {310, 400, 10, b}}, l.ranges)
	l.add(mapped{0, 1000, 0, b})
	require.Equal(t, []mapped{{0, 1000, 0, b}}, l.ranges)
	l.add(mapped{5, 5, 0, a})
	require.Len(t, l.ranges, 1)
}

// TestRangesModel compares ranges with a plain list of bytes.
func TestRangesModel(t *testing.T) {
	for range 30 {
		l := &life{}
		var model [64]*mapped
		for range 12 {
			start := rand.Uint64N(60)
			m := mapped{start, start + 1 + rand.Uint64N(4) + rand.Uint64N(64-start)/2, rand.Uint64N(1000), &file{}}
			m.end = min(m.end, 64)
			l.add(m)
			for i := m.start; i < m.end; i++ {
				model[i] = &m
			}
			for i, want := range model {
				got := l.find(uint64(i))
				require.Equal(t, want == nil, got == nil)
				if want != nil {
					require.Same(t, want.file, got.file)
					require.Equal(t, want.offset+uint64(i)-want.start, got.offset+uint64(i)-got.start)
				}
			}
		}
	}
}

func TestHistory(t *testing.T) {
	h := newHistory()
	f, g := &file{}, &file{}
	h.exec(1, 100)
	h.mmap(1, mapped{0, 10, 0, f})
	h.mmap(1, mapped{10, 20, 0, f})
	h.fork(2, 1, 150)
	h.mmap(1, mapped{0, 10, 0, g})
	h.mmap(1, mapped{30, 40, 0, f})
	require.NotNil(t, h.at(2, 150).find(15))
	require.Nil(t, h.at(2, 150).find(35), "mapped by the parent later")
	require.Same(t, f, h.at(2, 150).find(5).file, "replaced by the parent later")
	h.fork(3, 1, 155)
	h.mmap(3, mapped{30, 40, 0, g})
	require.Same(t, f, h.at(1, 155).find(35).file, "replaced by a child later")
	h.end(3, 155)
	require.True(t, h.at(2, 150).known())
	require.Nil(t, h.at(2, 149))
	h.exec(2, 160)
	require.Nil(t, h.at(2, 160).find(15))
	require.NotNil(t, h.at(2, 159).find(15))
	h.end(1, 300)
	h.end(1, 300)
	require.Equal(t, 1, h.alive)
	require.NotNil(t, h.at(1, 500).find(35), "rows come later than the end")
	h.fork(1, 2, 600) // the PID is reused
	require.NotNil(t, h.at(1, 599).find(35))
	require.Nil(t, h.at(1, 600).find(35))

	// A parent process that is older than the history is read later.
	h.fork(11, 10, 700)
	child := h.at(11, 700)
	require.False(t, child.known())
	require.Nil(t, child.find(5))
	parent := h.at(10, 0)
	parent.whole = true
	parent.add(mapped{0, 10, 0, f})
	require.True(t, child.known())
	require.NotNil(t, child.find(5))

	// Ranges that were read after an execve do not belong to the earlier life.
	parent.readAt = 900
	h.exec(10, 850)
	require.Nil(t, parent.find(5))
	require.False(t, parent.whole)

	for pid := range uint32(3 * maxLives) {
		h.exec(pid+100, 1000)
		h.end(pid+100, 1000)
	}
	require.LessOrEqual(t, len(h.ended), maxLives)
	require.LessOrEqual(t, len(h.byPID), maxLives+10)
	h.exec(1, 2000)
	h.forgetAlive()
	require.Zero(t, h.alive)
	require.Nil(t, h.current(1))
}

// TestForkChain checks that a chain of forks does not keep all its processes in memory.
func TestForkChain(t *testing.T) {
	h := newHistory()
	f := &file{}
	for pid := range uint32(1000) {
		h.fork(pid+2, pid+1, uint64(pid+1))
		h.end(pid+1, uint64(pid+1))
		h.mmap(pid+2, mapped{uint64(pid) * 10, uint64(pid)*10 + 10, 0, f})
		n := 0
		for l := h.at(pid+2, 0); l != nil; l = l.parent {
			n++
		}
		require.LessOrEqual(t, n, maxChain)
		require.NotNil(t, h.at(pid+2, 0).find(5), "it has what its parents have")
	}
}

// record creates a perf record like the kernel.
func record(kind uint32, misc uint16, time uint64, body ...byte) []byte {
	for len(body)%8 != 0 {
		body = append(body, 0)
	}
	b := binary.NativeEndian.AppendUint32(nil, kind)
	b = binary.NativeEndian.AppendUint16(b, misc)
	b = binary.NativeEndian.AppendUint16(b, uint16(8+len(body)+16))
	b = append(b, body...)
	b = append(b, make([]byte, 8)...)
	return binary.NativeEndian.AppendUint64(b, time)
}

func words(w ...any) []byte {
	var b []byte
	for _, v := range w {
		switch v := v.(type) {
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, v)
		case uint64:
			b = binary.NativeEndian.AppendUint64(b, v)
		case string:
			b = append(append(b, v...), 0)
		}
	}
	return b
}

func mmap2(prot uint32, path string) []byte {
	return words(uint32(7), uint32(8), uint64(0x1000), uint64(0x2000), uint64(0x3000), uint32(254), uint32(1), uint64(99), uint64(5), prot, uint32(2), path)
}

func TestParseRecord(t *testing.T) {
	e, ok := parseRecord(record(recordMmap2, 2, 42, mmap2(5, "/bin/x (deleted)")...))
	require.True(t, ok)
	require.Equal(t, event{
		kind: recordMmap2, time: 42, pid: 7, start: 0x1000, end: 0x3000, offset: 0x3000,
		file: fileKey{dev: device{254, 1}, inode: 99, generation: 5, path: "/bin/x"},
	}, e)
	e, ok = parseRecord(record(recordFork, 0, 43, words(uint32(7), uint32(3), uint32(7), uint32(4), uint64(1))...))
	require.True(t, ok)
	require.Equal(t, event{kind: recordFork, time: 43, pid: 7, parent: 3}, e)
	e, ok = parseRecord(record(recordLost, 0, 43, words(uint64(7), uint64(3))...))
	require.True(t, ok)
	require.EqualValues(t, 3, e.lost)
	for name, b := range map[string][]byte{
		"a thread":       record(recordFork, 0, 43, words(uint32(7), uint32(7), uint32(9), uint32(7), uint64(1))...),
		"a new name":     record(recordComm, 0, 43, words(uint32(7), uint32(7), "x")...),
		"data":           record(recordMmap2, 2, 42, mmap2(3, "/bin/x")...),
		"with build ID":  record(recordMmap2, miscBuildID, 42, mmap2(5, "/bin/x")...),
		"another":        record(9, 0, 42, mmap2(5, "/bin/x")...),
		"short":          record(recordMmap2, 0, 1, 1, 2, 3),
		"without a body": record(recordFork, 0, 1),
		"nothing":        nil,
	} {
		_, ok := parseRecord(b)
		require.False(t, ok, name)
	}
}

func TestParseCPUs(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 5, 7, 8}, parseCPUs("0-2,5,7-8"))
	require.Empty(t, parseCPUs(""))
	require.Empty(t, parseCPUs("x,9-1,1-x,99999999999"))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("00401000-00402000 r-xp 00001000 fd:01 12 /usr/bin/app\n"))
	f.Add([]byte("37 35 0:52 / /mnt2/my\\040host rw - fuse.sshfs host: rw\n"))
	f.Add(record(recordMmap2, 2, 42, mmap2(5, "/bin/x (deleted)")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range parseMaps(b) {
			require.Less(t, a.start, a.end)
			require.LessOrEqual(t, len(a.key.path), maxPath)
		}
		for _, m := range parseMounts(b) {
			findMount([]mount{m}, m.point)
		}
		if e, ok := parseRecord(b); ok && e.kind == recordMmap2 {
			require.Less(t, e.start, e.end)
		}
		parseCPUs(string(b))
	})
}
