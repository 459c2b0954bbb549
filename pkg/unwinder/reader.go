package unwinder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

const (
	// readerMost and readerLeast are the bounds of the memory limit of a Reader's process, in bytes.
	readerMost  = 384 << 20
	readerLeast = 128 << 20
	// readerIdle is the time without a request after which the process is ended.
	readerIdle = time.Minute
	// killTime is how long a killed process can take to exit. A process that takes longer waits for a file system.
	killTime = time.Second
)

// Reader reads files in a separate, unprivileged process: unwinder -read. The process starts with the first file, and again
// after it has exited. After two exits on the same file, the Reader skips this file. Short tasks have their own process, so
// they do not wait for large files. Debug information also has its own process. If a file crashes it, all names remain. Use
// NewReader.
type Reader struct {
	*runs // runs for reading names
	facts *runs
	lines *runs
}

// runs manages consecutive runs of the process.
type runs struct {
	path  func() (string, error)
	log   Log
	ended func()
	reads string // the data that is not read during a restart
	lacks string // the data that is missing if the unwinder cannot run
	// In tests, these fields override the constants of the same names.
	firstBackoff, idle time.Duration
	memory             uint64

	warned sync.Once // the unwinder does not run

	mu       sync.Mutex // held while a file is read
	run      *readerRun
	hung     []*readerRun
	backoff  time.Duration
	next     time.Time // the earliest time of the next start
	suspects []symtab.FileID
	leftOut  []symtab.FileID
	resting  *time.Timer
	closed   bool
}

// readerRun is one run of the process.
type readerRun struct {
	*child
	conn  *symtab.Conn
	began time.Time
	used  time.Duration // the CPU time that answers reported
}

// NewReader returns a Reader that logs to log. It calls ended, if not nil, each time that its process exits unexpectedly.
func NewReader(log Log, ended func()) *Reader {
	const lacks = "user functions have no names"
	memory := min(readerMost, max(readerLeast, groupLimit()/4))
	return &Reader{
		runs: newRuns(log, ended, "names", lacks, memory), facts: newRuns(log, ended, "build IDs", lacks, readerLeast),
		lines: newRuns(log, ended, "source lines", "user functions have no lines (source_lines)", memory),
	}
}

// newRuns returns runs with a memory limit in bytes for each.
func newRuns(log Log, ended func(), reads, lacks string, memory uint64) *runs {
	return &runs{
		path: find, log: log, ended: ended, reads: reads, lacks: lacks, firstBackoff: firstBackoff, idle: readerIdle, memory: memory,
	}
}

// Read implements symtab.Reader.
func (r *Reader) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	switch {
	case t.Brief():
		return r.facts.Read(ctx, t)
	case t.Kind == symtab.ReadLines:
		return r.lines.Read(ctx, t)
	}
	return r.runs.Read(ctx, t)
}

// Close implements symtab.Reader.
func (r *Reader) Close() {
	r.runs.Close()
	r.facts.Close()
	r.lines.Close()
}

// NewContextReader returns a Reader for the contexts of processes. It implements proccontext.Reader.
func NewContextReader(log Log) *Reader {
	r := NewReader(log, nil)
	r.reads, r.lacks, r.memory = "process contexts", "process contexts are not read (setting process_context)", readerLeast
	return r
}

// Wait implements symtab.Reader. After an unexpected exit, it waits until the process may be started again.
func (r *runs) Wait(ctx context.Context) {
	r.mu.Lock()
	wait := time.Until(r.next)
	r.mu.Unlock()
	patience.Within(ctx.Done(), wait)
}

var (
	errLeftOut = fmt.Errorf("%w: reading it made the program %s exit twice", symtab.ErrMalformed, Program)
	errClosed  = fmt.Errorf("%w: it was closed", symtab.ErrReader)
	errLater   = fmt.Errorf("%w: it is restarting", symtab.ErrReader)
)

// Read performs a task.
func (r *runs) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	return do(ctx, r, t.File(), func(c *symtab.Conn) (*symtab.Table, time.Duration, error) { return c.Exchange(ctx, t) })
}

// Ask makes the process decode data of the workload's process with this PID and start time. See symtab.Conn.
func (r *runs) Ask(ctx context.Context, pid uint32, start uint64, request []byte) (answer []byte, used time.Duration, err error) {
	file := symtab.FileID{Inode: uint64(pid), Process: start}
	return do(ctx, r, file, func(c *symtab.Conn) ([]byte, time.Duration, error) { return c.Ask(ctx, request) })
}

// do performs a task on a file in the process, which it starts if necessary. It returns the task's CPU time, even if the
// process has exited.
func do[T any](ctx context.Context, r *runs, file symtab.FileID, task func(*symtab.Conn) (T, time.Duration, error)) (answer T, used time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return answer, 0, errClosed
	case slices.Contains(r.leftOut, file):
		return answer, 0, errLeftOut
	}
	if r.run != nil && r.run.gone() {
		r.lose("")
		patience.Within(ctx.Done(), min(time.Until(r.next), r.firstBackoff)) // no file is to blame
	}
	if r.run == nil {
		if time.Now().Before(r.next) {
			return answer, 0, errLater
		}
		if err := r.start(); err != nil {
			return answer, 0, err
		}
	}
	if r.resting != nil {
		r.resting.Stop()
	}
	run := r.run
	answer, used, err = task(run.conn)
	run.used += used
	if errors.Is(err, symtab.ErrReader) {
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the result is no longer wanted
			r.end()
			return answer, run.unaccounted(), err
		}
		said := ""
		if r.blame(file) {
			said = "; it was reading the same file as before an earlier restart, so this file is skipped from now on"
		}
		r.lose(said)
		used = run.unaccounted()
	}
	r.resting = time.AfterFunc(r.idle, r.rest)
	return answer, used, err
}

// blame records the file that was read when the process exited. It reports whether that happened before.
func (r *runs) blame(id symtab.FileID) bool {
	list := &r.suspects
	again := slices.Contains(r.suspects, id)
	if again {
		list = &r.leftOut
	}
	*list = append(*list, id)
	*list = slices.Clone((*list)[max(0, len(*list)-maxAvoided):])
	return again
}

// rest ends an idle process.
func (r *runs) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end()
}

// Close ends the run.
func (r *runs) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.resting != nil {
		r.resting.Stop()
	}
	r.end()
}

// lose abandons a process that has exited unexpectedly or must be ended. The caller holds mu.
func (r *runs) lose(said string) {
	run := r.run
	r.end()
	if r.backoff = min(2*r.backoff, maxBackoff); r.backoff == 0 || time.Since(run.began) > steady {
		r.backoff = r.firstBackoff
	}
	r.next = time.Now().Add(r.backoff)
	r.log.Warnf("restarting the file reader in %v; until then, no %s are read: %s%s", r.backoff, r.reads, run.reason(), said)
	if r.ended != nil {
		r.ended()
	}
}

// end ends the process if it runs. The caller holds mu.
func (r *runs) end() {
	run := r.run
	if r.run = nil; run == nil {
		return
	}
	run.conn.Close()
	_ = run.cmd.Process.Kill()
	if !patience.Within(run.ended, killTime) {
		r.hung = append(r.hung, run)
	}
}

// start starts the process. The caller holds mu.
func (r *runs) start() error {
	if r.hung = slices.DeleteFunc(r.hung, (*readerRun).gone); len(r.hung) >= maxHung {
		return fmt.Errorf("%w: %d of its processes are blocked by file systems that do not respond (find them with mount | grep -e fuse -e nfs)", symtab.ErrReader, len(r.hung))
	}
	path, err := r.path()
	if err != nil {
		r.warned.Do(func() { r.log.Warnf("%s: %v", r.lacks, err) })
		return fmt.Errorf("%w: %w", symtab.ErrReader, err)
	}
	run, err := launchReader(path, r.memory, func(line string) { r.log.Debugf("file reader: %s", line) })
	if err != nil {
		r.warned.Do(func() { r.log.Warnf("%s: %v", r.lacks, err) })
		r.next = time.Now().Add(maxBackoff)
		return fmt.Errorf("%w: %w", symtab.ErrReader, err)
	}
	r.run = run
	return nil
}

// launchReader starts the process with a memory limit in bytes.
func launchReader(path string, memory uint64, log func(line string)) (*readerRun, error) {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := symtab.NewConn(ours)
	if err != nil {
		return nil, err
	}
	run := &readerRun{child: newChild(path, memory, log, "-read", "-memory", strconv.FormatUint(memory, 10)), conn: conn, began: time.Now()}
	run.cmd.ExtraFiles = []*os.File{theirs}
	if err := run.start(0); err != nil {
		conn.Close()
		return nil, err
	}
	return run, nil
}

// unaccounted returns the CPU time that no answer has reported. Call it after the process was killed.
func (r *readerRun) unaccounted() time.Duration {
	if !r.gone() {
		return 0 // it is blocked and uses none
	}
	return max(0, r.cmd.ProcessState.UserTime()+r.cmd.ProcessState.SystemTime()-r.used)
}
