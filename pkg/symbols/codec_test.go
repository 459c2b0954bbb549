package symbols

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// with returns a table that has Go's functions at those addresses, too.
func (t *Table) with(ctx context.Context, r io.ReaderAt, size int64, o Reading, addrs []uint64) (*Table, error) {
	if t.golang == nil {
		return t, nil
	}
	more := *t
	var err error
	more.golang, err = t.golang.loadFunctions(newReader(ctx, r, size, o), t.golang.missing(addrs), o.Inlined, o.Limits)
	return &more, err
}

// written is a Table as it is written.
func written(t testing.TB, table *Table) []byte {
	t.Helper()
	var b bytes.Buffer
	c := coder{w: bufio.NewWriter(&b)}
	c.table(table)
	require.NoError(t, c.err)
	require.NoError(t, c.w.Flush())
	return b.Bytes()
}

func readWritten(b []byte, left int64) (*Table, error) {
	c := coder{r: bufio.NewReader(bytes.NewReader(b)), left: left}
	table := new(Table)
	c.table(table)
	return table, c.err
}

// fill sets all that v holds to something that is not zero: references are 1, and lists have two things.
func fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.Interface: // binary.ByteOrder
		v.Set(reflect.ValueOf(binary.BigEndian))
	case reflect.String:
		v.SetString("abc")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	default:
		panic(v.Kind().String())
	}
}

// A Table is read as it was written, with each field that it has: a new field belongs into codec.go, too.
func TestCodecKeepsFields(t *testing.T) {
	var table Table
	fill(reflect.ValueOf(&table).Elem())
	n := new(namer)
	n.add([]byte("first"))
	n.add([]byte("second"))
	n.add([]byte("third"))
	one := n.finish()
	for i := range table.layers {
		table.layers[i].names = one
	}
	table.lines.files, table.lines.names = *one, *one
	table.golang.start, table.golang.pointer = []uint32{1, 2}, 8
	table.golang.size = table.golang.loaded[1].bytes()
	got, err := readWritten(written(t, &table), 1<<20)
	require.NoError(t, err)
	require.Equal(t, &table, got)
}

// examples are tables of all kinds.
func examples(t testing.TB) map[string]*Table {
	t.Helper()
	o := Reading{Limits: DefaultLimits(), Inlined: true, Lines: true}
	all := map[string]*Table{}
	golang, err := readBytes(goExample(goExampleTable()).bytes())
	require.NoError(t, err)
	all["go"] = golang
	plain, err := readBytes(new(testELF).code(".text", 0x1000, make([]byte, 0x1000)).
		symbols(".symtab", elf.SHT_SYMTAB, function("one", 0x1000, 0x10), function("two", 0x1010, 0x10), function("two", 0x1030, 0x10)).bytes())
	require.NoError(t, err)
	all["symtab"] = plain
	perf := []byte("1000 10 a\n1020 10 b\n700000000000 10 c\n")
	all["perf map"], err = ReadPerfMap(t.Context(), bytes.NewReader(perf), int64(len(perf)), nil, o.Limits)
	require.NoError(t, err)
	vdso, err := readVDSO(t.Context(), o)
	require.NoError(t, err)
	all["vdso"] = vdso
	return all
}

// Tables of files answer as before.
func TestCodec(t *testing.T) {
	for name, table := range examples(t) {
		got, err := readWritten(written(t, table), table.Bytes()+slack)
		require.NoError(t, err, name)
		require.Equal(t, table.Len(), got.Len(), name)
		require.InDelta(t, table.Bytes(), got.Bytes(), 100, name)
		for addr := uint64(0); addr < 0x3000; addr++ {
			for _, base := range []uint64{0, testBase, 0x700000000000} {
				want, state := table.Lookup(base + addr)
				symbol, gotState := got.Lookup(base + addr)
				require.Equal(t, want, symbol, name)
				require.Equal(t, state, gotState, name)
			}
		}
		_, err = readWritten(written(t, table), 100)
		require.ErrorIs(t, err, errCodec, "%s: it takes more than it may", name)
	}
}

// hostile are Tables as they are written, to be changed.
func hostile(t testing.TB) (all [][]byte) {
	for _, table := range examples(t) {
		all = append(all, written(t, table))
	}
	var table Table
	fill(reflect.ValueOf(&table).Elem())
	return append(all, written(t, &table))
}

// ask looks up whatever is in a Table as it is written. It returns false for one that is not read.
func ask(t *testing.T, b []byte) bool {
	const left = 1 << 20
	table, err := readWritten(b, left)
	if err != nil {
		return false
	}
	require.Less(t, table.Bytes(), int64(3*left))
	addrs := []uint64{0}
	for _, l := range table.layers {
		for i := range min(len(l.starts), 100) {
			addrs = append(addrs, l.base+uint64(l.starts[i]))
		}
	}
	if g := table.golang; g != nil {
		for i := range g.loaded {
			if int(i) < len(g.start) {
				addrs = append(addrs, g.text+uint64(g.start[i]), g.text+uint64(g.start[i])+8)
			}
		}
		g.missing(addrs)
	}
	debug := table.withDebug(table)
	for _, addr := range addrs {
		table.Lookup(addr)
		table.Virtual(addr)
		debug.Lookup(addr)
	}
	return true
}

// Whatever is written, what is read answers without a panic and takes no more memory than it may.
func FuzzCodec(f *testing.F) {
	for _, b := range hostile(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { ask(t, b) })
}

// The same with some bytes changed. Many such Tables are read.
func TestCodecChanged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	read := 0
	for _, b := range hostile(t) {
		for range 20_000 {
			changed := bytes.Clone(b)
			for range 1 + r.IntN(3) {
				changed[r.IntN(len(b))] = []byte{0, 1, 2, 0x7f, 0x80, 0xff, byte(r.IntN(256))}[r.IntN(7)]
			}
			if ask(t, changed) {
				read++
			}
		}
	}
	t.Log(read)
	require.Greater(t, read, 1000)
}

// conns returns the two ends of a socket.
func conns(t testing.TB) (here, there *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	here, err = NewConn(os.NewFile(uintptr(fds[0]), "here"))
	require.NoError(t, err)
	there, err = NewConn(os.NewFile(uintptr(fds[1]), "there"))
	require.NoError(t, err)
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// apart is a Reader of files at the other end of a socket.
type apart struct {
	c    *Conn
	done chan error
}

func newApart(t testing.TB) *apart {
	here, there := conns(t)
	a := &apart{here, make(chan error, 1)}
	go func() { a.done <- there.Serve(64<<20, bytes.ToUpper) }()
	return a
}

func (a *apart) Read(ctx context.Context, t *Task) (*Table, time.Duration, error) {
	return a.c.Exchange(ctx, t)
}

func (a *apart) Wait(context.Context) {}

func (a *apart) Close() {
	a.c.Close()
	select {
	case <-a.done:
	case <-time.After(time.Minute):
		panic("it does not end")
	}
}

// A debug file that the other process asks for is one of those that the finder would open, and no other.
func TestAskForDebugFile(t *testing.T) {
	dir := t.TempDir()
	id := "0123456789abcdef0123456789abcdef01234567"
	debug := filepath.Join(dir, "usr/lib/debug/.build-id", id[:2], id[2:]+".debug")
	require.NoError(t, os.MkdirAll(filepath.Dir(debug), 0o700))
	require.NoError(t, os.WriteFile(debug, []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("content"), 0o600))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	find := &finder{path: "/bin/program", roots: []root{{fd, true}}}
	defer find.close()
	here, there := conns(t)
	go func() {
		for {
			in := coder{r: here.r, left: slack}
			answer := uint8(0)
			if number(&in, &answer, numAnswers); in.err != nil || here.answerAsk(&in, find) != nil {
				return
			}
		}
	}()
	for key, want := range map[debugKey]bool{
		{id: id}:                      true,
		{id: "0123"}:                  false,
		{id: "../../../../../secret"}: false,
		{link: "../../../../secret"}:  false,
		{link: ".."}:                  false,
		{link: "secret"}:              false,
		{link: "a\x00b"}:              false,
		{}:                            false,
		{id: id, link: "secret"}:      false,
	} {
		f, size, _ := asked{there}.candidate(key, 0)
		require.Equal(t, want, f != nil, "%+v", key)
		if want {
			b, err := io.ReadAll(f)
			require.NoError(t, err)
			require.EqualValues(t, len(b), size)
			f.Close()
			f, _, last := asked{there}.candidate(key, 1)
			require.Nil(t, f)
			require.True(t, last)
		}
	}
}

// Bytes are decoded at the other end, whatever the answers to files are, and the other way round.
func TestAskBytes(t *testing.T) {
	here, there := conns(t)
	done := make(chan error, 1)
	go func() { done <- there.Serve(64<<20, bytes.ToUpper) }()
	for _, text := range []string{"ab", "", strings.Repeat("c", maxAnswer)} {
		answer, _, err := here.Ask(t.Context(), []byte(text))
		require.NoError(t, err)
		require.Equal(t, strings.ToUpper(text), string(answer))
	}
	_, _, err := here.Ask(t.Context(), make([]byte, maxBytes+1))
	require.ErrorIs(t, err, ErrReader, "the other end ends")
	require.ErrorIs(t, <-done, errCodec)
}
