package symbols

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// A file can be read in another process, which has no rights but the descriptors that it is sent. The two talk by a socket: a
// request with a file, then the answer, and in between the other process may ask for debug files.

const (
	// protocol is the first number of each request. It changes with the layout of messages, and of a Table.
	protocol = 2
	// maxRequest bounds a request, in bytes.
	maxRequest = 256 << 10
	// maxAsks is how many debug files may be asked for while a file is read.
	maxAsks = 4 * maxCandidates
	// grace is for how long an answer is waited for after the time for it is up.
	grace = 2 * time.Second
	// maxBytes and maxAnswer bound what is sent to be decoded, and what comes of it, in bytes.
	maxBytes, maxAnswer = 128 << 10, 16 << 10
	// maxReason is how long the text of an error is, in bytes.
	maxReason = 300
	// slack is what a Table may take in memory while it is read, in bytes, beyond Task.room.
	slack = 8 << 20
)

// The answers.
const (
	answerTable = iota
	answerSame
	answerFunctions
	answerError
	answerAsk
	answerBytes
	numAnswers
)

// reasons are the errors that are told from each other.
var reasons = []error{nil, ErrNotELF, ErrNoSymbols, ErrMalformed, ErrTooSlow, ErrTooLarge}

// readError is an error of the other process.
type readError struct {
	reason error
	text   string
}

func (e *readError) Error() string { return e.text }

func (e *readError) Unwrap() error { return e.reason }

// Conn is one end of the socket. It is for one goroutine.
type Conn struct {
	c *net.UnixConn
	r *bufio.Reader
	w *bufio.Writer
}

// NewConn returns the Conn of a socket of the type SOCK_STREAM, and closes f.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("taking a socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("taking a socket: it is of another kind")
	}
	return &Conn{c: u, r: bufio.NewReaderSize(u, 64<<10), w: bufio.NewWriterSize(u, 64<<10)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = c.c.Close() }

// send sends a message, with a file if f is not nil.
func (c *Conn) send(message []byte, f *os.File) error {
	b := append(binary.LittleEndian.AppendUint32(nil, uint32(len(message))), message...)
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(f.Fd()))
	}
	n, _, err := c.c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.c.Write(b[n:])
	}
	return err
}

// receive waits for a message, whose file, if there is one, the caller closes.
func (c *Conn) receive() ([]byte, *os.File, error) {
	var head [4]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, oob, _, _, err := c.c.ReadMsgUnix(head[:], rights)
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		return nil, nil, io.EOF
	}
	var f *os.File
	messages, _ := unix.ParseSocketControlMessage(rights[:oob])
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			f = os.NewFile(uintptr(fds[0]), "file")
		}
	}
	_, err = io.ReadFull(c.c, head[n:])
	size := binary.LittleEndian.Uint32(head[:])
	if err == nil && size > maxRequest {
		err = errCodec
	}
	if err == nil {
		b := make([]byte, size)
		if _, err = io.ReadFull(c.c, b); err == nil {
			return b, f, nil
		}
	}
	if f != nil {
		f.Close()
	}
	return nil, nil, err
}

// request is what is sent of a Task.
func (c *coder) request(t *Task) {
	version := uint64(protocol)
	c.u64(&version)
	c.check(version == protocol, "a request of another release: install the program unwinder that belongs to this one")
	number(c, &t.kind, uint64(numTaskKinds)-1)
	if t.kind == decodeBytes {
		c.bytes(&t.bytes, maxBytes)
		return
	}
	for _, v := range []*uint64{&t.id.Dev, &t.id.Inode, &t.id.Process, &t.base} {
		c.u64(v)
	}
	number(c, &t.Limits.Symbols, math.MaxInt32)
	number(c, &t.Limits.Names, math.MaxInt32)
	for _, v := range []*int64{&t.id.Size, &t.id.MtimeNS, &t.id.CtimeNS, &t.size, &t.room, &t.Limits.Read, &t.Limits.Debug, &t.Limits.Memory, (*int64)(&t.timeout)} {
		number(c, v, math.MaxUint64)
	}
	c.bool(&t.Inlined)
	c.bool(&t.Lines)
	debug := t.debug != nil
	if c.bool(&debug); debug && c.reads() {
		t.debug = noDebugFiles{}
	}
	items(c, &t.functions, maxWanted, 8)
	for i := range t.functions {
		number(c, &t.functions[i].number, math.MaxUint32)
		number(c, &t.functions[i].size, math.MaxUint32)
	}
	old := t.old != nil
	if c.bool(&old); !old || c.err != nil {
		return
	}
	if c.reads() {
		t.old = &Table{golang: &goTable{}}
	}
	switch t.kind {
	case readFunctions:
		c.goPlace(&t.old.golang.goPlace)
	case readPerfMap:
		number(c, &t.old.read, math.MaxInt64)
		c.u64(&t.old.edges)
		c.bool(&t.old.cut)
	}
}

// same tells whether a perf map's table says what the old one does.
func (t *Table) same(old *Table) bool {
	return old != nil && t.read == old.read && t.edges == old.edges && t.cut == old.cut
}

// ask is a question for a debug file.
func (c *coder) ask(by *debugKey, n *int) {
	c.text(&by.id, maxBuildID)
	c.text(&by.link, maxPath)
	number(c, n, maxCandidates)
}

// Exchange has the other process perform a task, which it should end soon after ctx. It returns the CPU time that this has
// taken there. An error that is an ErrReader says that the other process is of no use any more.
func (c *Conn) Exchange(ctx context.Context, t *Task) (*Table, time.Duration, error) {
	sent := *t
	stop, err := c.begin(ctx, &sent)
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	for range maxAsks {
		in := coder{r: c.r, left: t.room + slack}
		answer := uint8(0)
		if number(&in, &answer, numAnswers-1); answer == answerAsk && in.err == nil {
			in.fail(c.answerAsk(&in, t.debug))
			if in.err != nil {
				return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.err)
			}
			continue
		}
		used := in.used(&sent)
		table, err := in.answer(answer, t)
		if in.err != nil {
			return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.err)
		}
		return table, used, err
	}
	return nil, 0, fmt.Errorf("%w: %w: it asks for ever more debug files", ErrReader, errCodec)
}

// begin sends a task, whose timeout it sets. The caller calls stop once it has the answer.
func (c *Conn) begin(ctx context.Context, t *Task) (stop func() bool, err error) {
	switch {
	case ctx.Err() != nil:
		return nil, ErrTooSlow
	case c.r.Buffered() > 0:
		return nil, fmt.Errorf("%w: %w: an answer to nothing", ErrReader, errCodec)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(defaultTimeout)
	}
	t.timeout = max(time.Until(deadline), time.Millisecond)
	var b bytes.Buffer
	out := coder{w: bufio.NewWriter(&b)}
	if out.request(t); out.err == nil {
		out.fail(out.w.Flush())
	}
	if out.err != nil {
		return nil, out.err
	}
	_ = c.c.SetDeadline(deadline.Add(grace))
	stop = context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = c.c.SetDeadline(time.Unix(1, 0))
		}
	})
	if err := c.send(b.Bytes(), t.file); err != nil {
		stop()
		return nil, fmt.Errorf("%w: %w", ErrReader, err)
	}
	return stop, nil
}

// used reads the CPU time that a task has taken.
func (c *coder) used(t *Task) (used time.Duration) {
	number(c, &used, uint64(max(t.timeout, 0)+grace)*16) // so many CPUs at most
	return used
}

// Ask has the other process decode bytes, at most 128 KiB, by the function that its Serve was given, and returns what it makes of them, at
// most 16 KiB. Time and errors are those of Exchange.
func (c *Conn) Ask(ctx context.Context, request []byte) (answer []byte, used time.Duration, err error) {
	t := Task{kind: decodeBytes, bytes: request}
	stop, err := c.begin(ctx, &t)
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	in := coder{r: c.r, left: maxAnswer}
	kind := uint8(0)
	number(&in, &kind, numAnswers-1)
	in.check(kind == answerBytes, "an answer that nobody has asked for")
	used = in.used(&t)
	if in.bytes(&answer, maxAnswer); in.err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.err)
	}
	return answer, used, nil
}

// answer reads the answer to a task. The error is one of reading the file; that of reading the answer is in c.
func (c *coder) answer(answer uint8, t *Task) (*Table, error) {
	switch answer {
	case answerTable:
		table := new(Table)
		c.table(table)
		c.check(t.kind != readFunctions, "a table that nobody has asked for")
		return table, nil
	case answerSame:
		c.check(t.kind == readPerfMap && t.old != nil, "a table that there is not")
		return t.old, nil
	case answerBytes:
		c.check(false, "bytes that nobody has asked for")
		return nil, nil
	case answerFunctions:
		if c.check(t.kind == readFunctions, "functions that nobody has asked for"); c.err != nil {
			return nil, nil
		}
		var loaded map[uint32]*goFunc
		size := int64(0)
		c.goFuncs(&loaded, &size)
		more := *t.old
		if more.golang = t.old.golang.and(loaded, size); more.golang.size > int64(t.Limits.Names) {
			return nil, fmt.Errorf("%w: more than %d bytes of functions", ErrTooLarge, t.Limits.Names)
		}
		return &more, nil
	default:
		e := new(readError)
		kind := 0
		number(c, &kind, uint64(len(reasons)-1))
		if c.text(&e.text, maxReason); c.err != nil {
			return nil, nil
		}
		e.reason, e.text = reasons[kind], printable.Clean(e.text)
		return nil, e
	}
}

// and returns a table that has more functions, which take size bytes.
func (t *goTable) and(loaded map[uint32]*goFunc, size int64) *goTable {
	more := *t
	more.loaded = make(map[uint32]*goFunc, len(t.loaded)+len(loaded))
	for _, l := range []map[uint32]*goFunc{t.loaded, loaded} {
		for n, f := range l {
			more.loaded[n] = f
		}
	}
	more.size += size
	return &more
}

// answerAsk sends the debug file that the other process asks for.
func (c *Conn) answerAsk(in *coder, debug debugFiles) error {
	var by debugKey
	n := 0
	if in.ask(&by, &n); in.err != nil {
		return in.err
	}
	var f *os.File
	size, last := int64(0), true
	if debug != nil {
		f, size, last = debug.candidate(by, n)
	}
	if f != nil {
		defer f.Close()
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(size))
	if last {
		b = append(b, 1)
	}
	return c.send(b, f)
}

// asked are the debug files that the process has that started this one.
type asked struct{ c *Conn }

// candidate implements debugFiles.
func (a asked) candidate(by debugKey, n int) (*os.File, int64, bool) {
	out := coder{w: a.c.w}
	answer := uint8(answerAsk)
	number(&out, &answer, numAnswers)
	if out.ask(&by, &n); out.err != nil || a.c.w.Flush() != nil {
		return nil, 0, true
	}
	b, f, err := a.c.receive()
	if err != nil || len(b) < 8 {
		return nil, 0, true
	}
	return f, int64(binary.LittleEndian.Uint64(b)), len(b) > 8
}

// noDebugFiles stands for asked in a Task that was received.
type noDebugFiles struct{}

func (noDebugFiles) candidate(debugKey, int) (*os.File, int64, bool) { return nil, 0, true }

// Serve reads files for the process at the other end of the socket, until that ends. Reading a file takes memory bytes for a time
// at most, whatever is asked for, and a quarter of that is kept of perf maps. decode is what Ask asks for; nil: nothing is made of bytes.
func (c *Conn) Serve(memory int64, decode func([]byte) []byte) error {
	kept := perfMaps{most: memory / 4}
	for {
		b, f, err := c.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for a file to read: %w", err)
		}
		t := &Task{file: f}
		in := coder{r: bufio.NewReader(bytes.NewReader(b)), left: 2 * maxRequest}
		if in.request(t); in.err == nil && (f == nil) != (t.kind == decodeBytes) {
			in.fail(errCodec)
		}
		switch {
		case in.err != nil:
			return fmt.Errorf("taking a file to read: %w", in.err)
		case f == nil:
			err = c.decode(t.bytes, decode)
		default:
			err = c.serve(t, &kept, memory)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("sending an answer: %w", err)
		}
	}
}

// decode sends what a function makes of bytes: nothing if it panics.
func (c *Conn) decode(b []byte, by func([]byte) []byte) error {
	begin := processTime()
	var made []byte
	if by != nil {
		func() {
			defer func() { _ = recover() }()
			made = by(b)
		}()
	}
	out := coder{w: c.w}
	answer, used := uint8(answerBytes), processTime()-begin
	number(&out, &answer, numAnswers)
	number(&out, &used, math.MaxInt64)
	if out.bytes(&made, maxAnswer); out.err != nil {
		return out.err
	}
	return c.w.Flush()
}

// serve performs a task and sends the answer.
func (c *Conn) serve(t *Task, kept *perfMaps, memory int64) error {
	begin := processTime()
	t.Limits.Memory = min(t.Limits.Memory, memory)
	if t.debug != nil {
		t.debug = asked{c}
	}
	known := t.old
	if t.kind == readPerfMap {
		t.old = kept.tables[t.id]
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	table, err := t.perform(ctx)
	out := coder{w: c.w}
	answer := uint8(answerTable)
	switch {
	case err != nil:
		answer = answerError
	case t.kind == readFunctions:
		answer = answerFunctions
	case t.kind == readPerfMap:
		if kept.keep(t.id, table); table.same(known) {
			answer = answerSame
		}
	}
	number(&out, &answer, numAnswers)
	used := processTime() - begin
	number(&out, &used, math.MaxInt64)
	switch answer {
	case answerTable:
		out.table(table)
	case answerFunctions:
		out.goFuncs(&table.golang.loaded, &table.golang.size)
	case answerError:
		kind := 0
		for i, reason := range reasons {
			if kind == 0 && reason != nil && errors.Is(err, reason) {
				kind = i
			}
		}
		text := err.Error()
		text = text[:min(len(text), maxReason)]
		number(&out, &kind, uint64(len(reasons)))
		out.text(&text, maxReason)
	}
	if out.err != nil {
		return out.err
	}
	return c.w.Flush()
}

// perfMaps keeps tables of perf maps, to read on from there.
type perfMaps struct {
	tables map[FileID]*Table
	bytes  int64
	most   int64
}

func (m *perfMaps) keep(id FileID, t *Table) {
	if old := m.tables[id]; old != nil {
		m.bytes -= old.Bytes()
	}
	if m.bytes += t.Bytes(); m.bytes > m.most || m.tables == nil {
		m.tables, m.bytes = map[FileID]*Table{}, t.Bytes()
	}
	m.tables[id] = t
}

// processTime is the CPU time of this process.
func processTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
