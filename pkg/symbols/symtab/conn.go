package symtab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

const (
	// protocol is the first number of each request. It changes with the layout of messages or of a Table.
	protocol = 6
	// maxRequest limits a request, in bytes.
	maxRequest = 256 << 10
	// maxAsks limits the requests for debug files while a file is read.
	maxAsks = 4 * MaxCandidates
	// grace is the additional wait for an answer after the time limit.
	grace = 2 * time.Second
	// maxBytes limits the bytes that are sent for decoding, and maxAnswer limits the bytes of the result.
	maxBytes, maxAnswer = 128 << 10, 16 << 10
	// maxReason limits the text of an error in bytes.
	maxReason = 300
	// Slack is the memory in bytes that decoding a Table may use beyond Task.Room.
	Slack = 8 << 20
)

// These are the kinds of answers.
const (
	answerTable = iota
	answerSame
	answerFunctions
	answerError
	answerAsk
	answerBytes
	NumAnswers
)

// reasons lists the errors that keep their identity across the socket.
var reasons = []error{nil, ErrNotELF, ErrNoSymbols, ErrMalformed, ErrTooSlow, ErrTooLarge}

// readError is an error from the other process.
type readError struct {
	reason error
	text   string
}

func (e *readError) Error() string { return e.text }

func (e *readError) Unwrap() error { return e.reason }

// Conn is one end of the socket. It is not safe for concurrent use.
type Conn struct {
	c *net.UnixConn
	R *bufio.Reader
	w *bufio.Writer
}

// NewConn returns a Conn for a socket of type SOCK_STREAM and closes f.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("opening a socket: it is not a Unix socket")
	}
	return &Conn{c: u, R: bufio.NewReaderSize(u, 64<<10), w: bufio.NewWriterSize(u, 64<<10)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = c.c.Close() }

// send sends a message, together with f unless f is nil.
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

// receive waits for a message. If a file comes with it, the caller closes the file.
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
		err = ErrCodec
	}
	if err == nil {
		b := make([]byte, size)
		if _, err = io.ReadFull(c.c, b); err == nil {
			return b, f, nil
		}
	}
	f.Close() // Close of nil does nothing
	return nil, nil, err
}

// request encodes or decodes a Task.
func (c *Coder) request(t *Task) {
	version := uint64(protocol)
	c.u64(&version)
	c.check(version == protocol, "a request from another release: install the unwinder of this release")
	Number(c, &t.Kind, uint64(numTaskKinds)-1)
	if t.Kind == decodeBytes {
		c.bytes(&t.bytes, maxBytes)
		return
	}
	for _, v := range []*uint64{&t.ID.Dev, &t.ID.Inode, &t.ID.Process, &t.Base} {
		c.u64(v)
	}
	Number(c, &t.Limits.Symbols, math.MaxInt32)
	Number(c, &t.Limits.Names, math.MaxInt32)
	for _, v := range []*int64{&t.ID.Size, &t.ID.MtimeNS, &t.ID.CtimeNS, &t.Size, &t.Room, &t.Limits.Read, &t.Limits.Debug, &t.Limits.Memory, (*int64)(&t.timeout)} {
		Number(c, v, math.MaxUint64)
	}
	c.text(&t.Fact, maxReason)
	debug := t.Debug != nil
	if c.bool(&debug); debug && c.reads() {
		t.Debug = Asked{} // serve adds the Conn
	}
	items(c, &t.Functions, MaxWanted, 8)
	for i := range t.Functions {
		Number(c, &t.Functions[i].Number, math.MaxUint32)
		Number(c, &t.Functions[i].Size, math.MaxUint32)
	}
	old := t.Old != nil
	if c.bool(&old); !old || c.Err != nil {
		return
	}
	if c.reads() {
		t.Old = &Table{Golang: &GoTable{}}
	}
	switch t.Kind {
	case ReadFunctions:
		c.goPlace(&t.Old.Golang.GoPlace)
	case ReadPerfMap:
		Number(c, &t.Old.Read, math.MaxInt64)
		c.u64(&t.Old.Edges)
		c.bool(&t.Old.Cut)
	}
}

// same reports whether the table of a perf map equals the old table.
func (t *Table) same(old *Table) bool {
	return old != nil && t.Read == old.Read && t.Edges == old.Edges && t.Cut == old.Cut
}

// ask encodes or decodes a request for a debug file.
func (c *Coder) ask(by *DebugKey, n *int) {
	c.text(&by.ID, maxBuildID)
	c.text(&by.Link, MaxPath)
	Number(c, n, MaxCandidates)
}

// Exchange makes the other process perform a task, which should end soon after ctx. It also returns the task's CPU time in that
// process. After ErrReader, the other process can no longer be used.
func (c *Conn) Exchange(ctx context.Context, t *Task) (*Table, time.Duration, error) {
	sent := *t
	stop, err := c.begin(ctx, &sent)
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	for range maxAsks {
		in := Coder{R: c.R, Left: t.Room + Slack}
		answer := uint8(0)
		if Number(&in, &answer, NumAnswers-1); answer == answerAsk && in.Err == nil {
			in.fail(c.AnswerAsk(&in, t.Debug))
			if in.Err != nil {
				return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.Err)
			}
			continue
		}
		used := in.used(&sent)
		table, err := in.answer(answer, t)
		if in.Err != nil {
			return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.Err)
		}
		return table, used, err
	}
	return nil, 0, fmt.Errorf("%w: %w: it requests too many debug files", ErrReader, ErrCodec)
}

// begin sends a task and sets its timeout. The caller calls stop after the answer.
func (c *Conn) begin(ctx context.Context, t *Task) (stop func() bool, err error) {
	switch {
	case ctx.Err() != nil:
		return nil, ErrTooSlow
	case c.R.Buffered() > 0:
		return nil, fmt.Errorf("%w: %w: an answer without a task", ErrReader, ErrCodec)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(DefaultTimeout)
	}
	t.timeout = max(time.Until(deadline), time.Millisecond)
	var b bytes.Buffer
	out := Coder{w: bufio.NewWriter(&b)}
	if out.request(t); out.Err == nil {
		out.fail(out.w.Flush())
	}
	if out.Err != nil {
		return nil, out.Err
	}
	_ = c.c.SetDeadline(deadline.Add(grace))
	stop = context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = c.c.SetDeadline(time.Unix(1, 0))
		}
	})
	if err := c.send(b.Bytes(), t.Opened); err != nil {
		stop()
		return nil, fmt.Errorf("%w: %w", ErrReader, err)
	}
	return stop, nil
}

// used encodes or decodes a task's CPU time.
func (c *Coder) used(t *Task) (used time.Duration) {
	Number(c, &used, uint64(max(t.timeout, 0)+grace)*16) // on at most 16 CPUs
	return used
}

// Ask makes the other process decode request with the function passed to Serve. request has at most 128 KiB, and the answer has
// at most 16 KiB. Ask returns the same CPU time and errors as Exchange.
func (c *Conn) Ask(ctx context.Context, request []byte) (answer []byte, used time.Duration, err error) {
	t := Task{Kind: decodeBytes, bytes: request}
	stop, err := c.begin(ctx, &t)
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	in := Coder{R: c.R, Left: maxAnswer}
	kind := uint8(0)
	Number(&in, &kind, NumAnswers-1)
	in.check(kind == answerBytes, "an answer that was not requested")
	used = in.used(&t)
	if in.bytes(&answer, maxAnswer); in.Err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrReader, in.Err)
	}
	return answer, used, nil
}

// answer decodes the answer to a task. It returns read errors of the file. Decoding errors are in c.
func (c *Coder) answer(answer uint8, t *Task) (*Table, error) {
	switch answer {
	case answerTable:
		table := new(Table)
		c.table(table)
		c.check(t.Kind != ReadFunctions, "a table that was not requested")
		return table, nil
	case answerSame:
		c.check(t.Kind == ReadPerfMap && t.Old != nil, "a reference to an earlier table, although there is none")
		return t.Old, nil
	case answerBytes:
		c.check(false, "bytes that were not requested")
		return nil, nil
	case answerFunctions:
		if c.check(t.Kind == ReadFunctions, "functions that were not requested"); c.Err != nil {
			return nil, nil
		}
		var loaded map[uint32]*GoFunc
		size := int64(0)
		c.goFuncs(&loaded, &size)
		more := *t.Old
		if more.Golang = t.Old.Golang.and(loaded, size); more.Golang.Size > int64(t.Limits.Names) {
			return nil, fmt.Errorf("%w: more than %d bytes of functions", ErrTooLarge, t.Limits.Names)
		}
		return &more, nil
	default:
		e := new(readError)
		kind := 0
		Number(c, &kind, uint64(len(reasons)-1))
		if c.text(&e.text, maxReason); c.Err != nil {
			return nil, nil
		}
		e.reason, e.text = reasons[kind], printable.Clean(e.text)
		return nil, e
	}
}

// and returns a table that also contains the functions in loaded. size is their size in bytes.
func (t *GoTable) and(loaded map[uint32]*GoFunc, size int64) *GoTable {
	more := *t
	more.Loaded = make(map[uint32]*GoFunc, len(t.Loaded)+len(loaded))
	maps.Copy(more.Loaded, t.Loaded)
	maps.Copy(more.Loaded, loaded)
	more.Size += size
	return &more
}

// AnswerAsk sends the requested debug file to the other process.
func (c *Conn) AnswerAsk(in *Coder, debug DebugFiles) error {
	var by DebugKey
	n := 0
	if in.ask(&by, &n); in.Err != nil {
		return in.Err
	}
	var f *os.File
	size, last := int64(0), true
	if debug != nil {
		f, size, last = debug.Candidate(by, n)
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

// Asked requests debug files from the process that started this one.
type Asked struct{ C *Conn }

// Candidate implements DebugFiles.
func (a Asked) Candidate(by DebugKey, n int) (*os.File, int64, bool) {
	out := Coder{w: a.C.w}
	answer := uint8(answerAsk)
	Number(&out, &answer, NumAnswers)
	if out.ask(&by, &n); out.Err != nil || a.C.w.Flush() != nil {
		return nil, 0, true
	}
	b, f, err := a.C.receive()
	if err != nil || len(b) < 8 {
		return nil, 0, true
	}
	return f, int64(binary.LittleEndian.Uint64(b)), len(b) > 8
}

// Perform performs a task in this process.
type Perform func(ctx context.Context, t *Task) (*Table, error)

// Serve reads files for the process at the other end of the socket, until that process exits. It uses at most memory bytes to
// read a file, including a quarter for the tables of perf maps. perform reads a file. decode answers Ask. If decode is nil, Ask
// has no effect.
func (c *Conn) Serve(memory int64, perform Perform, decode func([]byte) []byte) error {
	kept := perfMaps{most: memory / 4}
	for {
		b, f, err := c.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for a file to read: %w", err)
		}
		t := &Task{Opened: f}
		in := Coder{R: bufio.NewReader(bytes.NewReader(b)), Left: 2 * maxRequest}
		if in.request(t); in.Err == nil && (f == nil) != (t.Kind == decodeBytes) {
			in.fail(ErrCodec)
		}
		switch {
		case in.Err != nil:
			return fmt.Errorf("receiving a file to read: %w", in.Err)
		case f == nil:
			err = c.decode(t.bytes, decode)
		default:
			err = c.serve(t, &kept, memory, perform)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("sending an answer: %w", err)
		}
	}
}

// decode sends the result of by. If by panics, the result is empty.
func (c *Conn) decode(b []byte, by func([]byte) []byte) error {
	begin := ProcessTime()
	var made []byte
	if by != nil {
		func() {
			defer func() { _ = recover() }()
			made = by(b)
		}()
	}
	out := Coder{w: c.w}
	answer, used := uint8(answerBytes), ProcessTime()-begin
	Number(&out, &answer, NumAnswers)
	Number(&out, &used, math.MaxInt64)
	if out.bytes(&made, maxAnswer); out.Err != nil {
		return out.Err
	}
	return c.w.Flush()
}

// serve performs a task and sends the answer.
func (c *Conn) serve(t *Task, kept *perfMaps, memory int64, perform Perform) error {
	begin := ProcessTime()
	t.Limits.Memory = min(t.Limits.Memory, memory)
	if t.Debug != nil {
		t.Debug = Asked{c}
	}
	known := t.Old
	if t.Kind == ReadPerfMap {
		t.Old = kept.tables[t.ID]
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	table, err := perform(ctx, t)
	out := Coder{w: c.w}
	answer := uint8(answerTable)
	switch {
	case err != nil:
		answer = answerError
	case t.Kind == ReadFunctions:
		answer = answerFunctions
	case t.Kind == ReadPerfMap:
		if kept.keep(t.ID, table); table.same(known) {
			answer = answerSame
		}
	}
	Number(&out, &answer, NumAnswers)
	used := ProcessTime() - begin
	Number(&out, &used, math.MaxInt64)
	switch answer {
	case answerTable:
		out.table(table)
	case answerFunctions:
		out.goFuncs(&table.Golang.Loaded, &table.Golang.Size)
	case answerError:
		kind := 0
		for i, reason := range reasons {
			if kind == 0 && reason != nil && errors.Is(err, reason) {
				kind = i
			}
		}
		text := err.Error()
		text = text[:min(len(text), maxReason)]
		Number(&out, &kind, uint64(len(reasons)))
		out.text(&text, maxReason)
	}
	if out.Err != nil {
		return out.Err
	}
	return c.w.Flush()
}

// perfMaps keeps tables of perf maps, so that the next read continues from them.
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

// ProcessTime returns the CPU time of this process.
func ProcessTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
