package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

var wireSaid = Said{Labels: []Label{{"tenant", "a"}}, TraceID: [16]byte{9}, SpanID: [8]byte{8}}

var wireStats = Stats{
	Taken: 10, Full: 2, Failed: 3, Idle: 4, KernelLost: 5, NoProcess: 1, KernelMemory: 36 << 20, Aborts: map[uint32]uint64{4012: 1, 2: 7},
	Languages: [FrameTypes]Language{FramePython: {Frames: 3, Expected: 4, Missing: 1}},
}

// write writes a stream with every kind of message.
func write(t testing.TB) []byte {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Hello("")
	w.Ready(Ready{StartMillis: 1900})
	file := w.File(&File{Name: "app", Path: "/opt/app", GNUBuildID: "0af1", GoBuildID: "go/1", Hash: [16]byte{1, 2}, hash: "01020000000000000000000000000000", Version: [16]byte{3}, Device: 8, Inode: 99, Proc: 7, Low: 0x400000, High: 0x500000})
	mapping := w.Mapping(file, 0x1000, 0x5000, 0x200)
	leaf := w.Frame(&Frame{Type: FramePython, Function: "hash_orders", File: "orders.py", Line: 12}, 0)
	root := w.Frame(&Frame{Type: FrameNative, Address: 0x1234}, mapping)
	whole, cut := w.Stack([]uint32{leaf, root}, 0), w.Stack([]uint32{root}, 4012)
	proc := w.Proc(Proc{PID: 7, Start: 123456, MntNS: 4026531841, Exe: "python3.11"})
	w.Unwound(1<<54|7, whole, proc, &wireSaid)
	w.Unwound(1<<54|8, cut, proc, &Said{})
	w.Stats(&wireStats)
	w.Reset()
	again := w.Stack([]uint32{w.Frame(&Frame{Type: FrameGo, Function: "main.main"}, 0)}, 0)
	w.Unwound(1, again, w.Proc(Proc{PID: 8}), &Said{})
	w.Stats(&Stats{})
	require.NoError(t, w.Flush())
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	r := NewReader(bytes.NewReader(write(t)))
	ev, err := r.Next()
	require.NoError(t, err)
	require.True(t, ev.Hello)
	ev, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, &Ready{StartMillis: 1900}, ev.Ready)
	ev, err = r.Next()
	require.NoError(t, err)
	require.Len(t, ev.Flush.Unwound, 2)
	s := ev.Flush.Unwound[0]
	require.EqualValues(t, 1<<54|7, s.ID)
	require.Equal(t, uint32(1), RunOf(s.ID))
	assert.Equal(t, wireSaid, s.Said)
	assert.Equal(t, Said{}, ev.Flush.Unwound[1].Said)
	assert.Equal(t, &Proc{PID: 7, Start: 123456, MntNS: 4026531841, Exe: "python3.11"}, s.Proc)
	require.Len(t, s.Stack.Frames, 2)
	assert.Equal(t, &Frame{Type: FramePython, Function: "hash_orders", File: "orders.py", Line: 12}, s.Stack.Frames[0])
	assert.Equal(t, &Mapping{
		File: &File{Name: "app", Path: "/opt/app", GNUBuildID: "0af1", GoBuildID: "go/1", Hash: [16]byte{1, 2}, hash: "01020000000000000000000000000000", Version: [16]byte{3}, Device: 8, Inode: 99, Proc: 7, Low: 0x400000, High: 0x500000}, Start: 0x1000, End: 0x5000, Offset: 0x200,
	}, s.Stack.Frames[1].Mapping)
	assert.Equal(t, uint32(4012), ev.Flush.Unwound[1].Stack.Abort)
	assert.NotEqual(t, s.Stack.ID, ev.Flush.Unwound[1].Stack.ID)
	assert.Equal(t, wireStats, ev.Flush.Stats)

	ev, err = r.Next()
	require.NoError(t, err)
	require.Len(t, ev.Flush.Unwound, 1)
	assert.Equal(t, "main.main", ev.Flush.Unwound[0].Stack.Frames[0].Function)
	assert.Greater(t, ev.Flush.Unwound[0].Stack.ID, s.Stack.ID, "no ID is given twice, not even after a reset")
	_, err = r.Next()
	assert.Equal(t, io.EOF, err)
}

// TestFlushSize checks that a stream ends if it empties its tables repeatedly before a flush, because the samples would keep
// all tables.
func TestFlushSize(t *testing.T) {
	in, out := io.Pipe()
	go func() {
		w := NewWriter(out)
		text := strings.Repeat("x", MaxText-8)
		for n := 0; w.Flush() == nil; n++ {
			for i := range 1000 {
				w.Frame(&Frame{Function: fmt.Sprintf("%08d", i) + text}, 0)
			}
			w.Unwound(1, w.Stack([]uint32{1}, 0), w.Proc(Proc{PID: 1}), &Said{})
			w.Reset()
			if n == 10 {
				w.Stats(&Stats{})
			}
		}
	}()
	r := NewReader(in)
	ev, err := r.Next()
	require.NoError(t, err)
	require.Len(t, ev.Flush.Unwound, 11)
	require.InDelta(t, 11*1000*(MaxText+entryBytes+textBytes), ev.Flush.Size, 1e5)
	_, err = r.Next()
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "without a flush")
	require.NoError(t, in.Close())
}

func TestRefused(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Hello("the unwinder needs CAP_BPF")
	require.NoError(t, w.Flush())
	ev, err := NewReader(&b).Next()
	require.NoError(t, err)
	assert.Equal(t, "the unwinder needs CAP_BPF", ev.Refused)
}

// TestTextsAreCleaned checks that workloads' names are cleaned before they reach terminals and backends.
func TestTextsAreCleaned(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	evil := "a\x1b]0;owned\x07\x9bb\xff\u202ec\n"
	w.Unwound(1, w.Stack([]uint32{w.Frame(&Frame{Function: evil, File: strings.Repeat("x", 2*MaxText)}, 0)}, 0), w.Proc(Proc{PID: 1, Exe: evil}), &Said{})
	w.Stats(&Stats{})
	require.NoError(t, w.Flush())
	ev, err := NewReader(&b).Next()
	require.NoError(t, err)
	s := ev.Flush.Unwound[0]
	for _, text := range []string{s.Proc.Exe, s.Stack.Frames[0].Function} {
		assert.Equal(t, "a\ufffd]0;owned\ufffd\ufffdb\ufffd\ufffdc\ufffd", text)
	}
	assert.Len(t, s.Stack.Frames[0].File, MaxText)
}

// TestCutAndDamaged checks that a cut stream ends without an error, and that a damaged stream returns a protocol error or other
// data.
func TestCutAndDamaged(t *testing.T) {
	whole := write(t)
	refused := 0
	for n := range whole {
		require.Equal(t, io.EOF, drain(whole[:n]), "cut at %d", n)
		for _, b := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			damaged := bytes.Clone(whole)
			damaged[n] = b
			if err := drain(damaged); !errors.Is(err, io.EOF) {
				require.ErrorIs(t, err, ErrProtocol, "%#x at %d", b, n)
				refused++
			}
		}
	}
	require.Greater(t, refused, len(whole))
}

func drain(b []byte) error {
	r := NewReader(bytes.NewReader(b))
	for {
		if _, err := r.Next(); err != nil {
			return err
		}
	}
}

func TestProtocolErrors(t *testing.T) {
	head := append([]byte(Magic), Version)
	for name, stream := range map[string][]byte{
		"another program":   []byte("#!/bin/sh\necho"),
		"another version":   append([]byte(Magic), Version+1, 2, 1, 1),
		"an empty message":  append(bytes.Clone(head), 0),
		"a huge message":    append(bytes.Clone(head), 0xff, 0xff, 0xff, 0xff, 0x0f),
		"an endless length": append(bytes.Clone(head), bytes.Repeat([]byte{0xff}, 20)...),
		"an unknown kind":   append(bytes.Clone(head), 1, 200),
		"no such stack":     append(bytes.Clone(head), 6, byte(KindUnwound), 1, 1, 1, 0, 0),
		"no such frame":     append(bytes.Clone(head), 4, byte(KindStack), 0, 1, 9),
		"too many frames":   append(bytes.Clone(head), 4, byte(KindStack), 0, 0xff, 0x7f),
		"more than fields":  append(bytes.Clone(head), 2, byte(KindHello), 0),
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorIs(t, drain(stream), ErrProtocol)
		})
	}
}

// TestTablesAreBounded checks that a reader never keeps more than its limits.
func TestTablesAreBounded(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for range MaxProcs + 1 {
		w.Proc(Proc{PID: 1})
	}
	require.NoError(t, w.Flush())
	assert.ErrorIs(t, drain(b.Bytes()), ErrProtocol)

	b.Reset()
	w = NewWriter(&b)
	frame := w.Frame(&Frame{}, 0)
	deep := make([]uint32, 2*MaxDepth)
	for i := range deep {
		deep[i] = frame
	}
	for range MaxLinks/MaxDepth + 1 {
		w.Stack(deep, 0)
	}
	require.NoError(t, w.Flush())
	assert.ErrorIs(t, drain(b.Bytes()), ErrProtocol)
}

// TestReset checks that entries from before a reset no longer count.
func TestReset(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for range 3 { // each time with more than half of the limit
		deep := slices.Repeat([]uint32{w.Frame(&Frame{}, 0)}, MaxDepth)
		for range MaxLinks / MaxDepth * 2 / 3 {
			w.Stack(deep, 0)
		}
		w.Stats(&Stats{})
		w.Reset()
	}
	require.NoError(t, w.Flush())
	require.Equal(t, io.EOF, drain(b.Bytes()))
}

// TestWriterKeepsTheLimits checks that a writer that calls Fits never exceeds a limit.
func TestWriterKeepsTheLimits(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		w := NewWriter(pw)
		long := strings.Repeat("f", MaxText-8)
		for i := range 3 * MaxTextSize / MaxText {
			if !w.Fits(1) {
				w.Reset()
			}
			f := w.Frame(&Frame{Function: string(rune('a'+i%26)) + long + string(rune('0'+i/26%10)) + string(rune('0'+i/260%10)) + string(rune('0'+i/2600%10))}, 0)
			w.Unwound(1, w.Stack([]uint32{f}, 0), w.Proc(Proc{PID: 1}), &Said{})
			if i%1000 == 0 {
				w.Stats(&Stats{})
			}
		}
		w.Stats(&Stats{})
		pw.CloseWithError(errors.Join(w.Flush(), io.EOF))
	}()
	r := NewReader(pr)
	n := 0
	for {
		ev, err := r.Next()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		n += len(ev.Flush.Unwound)
	}
	assert.Equal(t, 3*MaxTextSize/MaxText, n)
}

func FuzzReader(f *testing.F) {
	whole := write(f)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(append([]byte(Magic), Version))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			ev, err := r.Next()
			if err != nil {
				return
			}
			if ev.Flush == nil {
				continue
			}
			for _, s := range ev.Flush.Unwound {
				if s.Stack == nil || s.Proc == nil || len(s.Stack.Frames) > MaxDepth || len(s.Labels) > MaxLabels {
					t.Fatalf("%+v", s)
				}
				for _, f := range s.Stack.Frames {
					if f == nil || printable.Clean(f.Function) != f.Function || f.Type >= frameEnd {
						t.Fatalf("%+v", f)
					}
				}
			}
		}
	})
}
