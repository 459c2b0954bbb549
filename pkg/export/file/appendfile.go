package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
)

// appendFile appends records to one file. If a record would exceed the size limit, write first renames the file, with the time
// in its name, and removes old files. Records are never split. A killed process can leave an incomplete record, which the next
// write removes. write does all of this, without a separate goroutine.
//
// Several processes can append to the same file, because each process locks the file while it writes.
type appendFile struct {
	path    string
	limit   config.Rotation
	whole   recordEnd   // finds the end of the last complete record
	problem func(error) // called with errors that do not prevent the write

	patience time.Duration // how long a reader can take no bytes before problem is called

	file   *os.File
	known  int64     // up to this offset, the file contains only complete records
	plain  bool      // this is a regular file, which can be locked, truncated and renamed
	pruned time.Time // when old files were last removed
	// unrotated is the time at which the file could not be renamed.
	unrotated time.Time
	closed    bool
}

const readerPatience = 10 * time.Second

func newAppendFile(path string, limit config.Rotation, whole recordEnd, problem func(error)) *appendFile {
	return &appendFile{path: path, limit: limit, whole: whole, problem: problem, patience: readerPatience}
}

func (a *appendFile) write(ctx context.Context, record []byte) error {
	if err := a.open(); err != nil {
		return err
	}
	if !a.plain {
		return a.writeToReader(ctx, record)
	}
	if err := a.lock(); err != nil {
		return err
	}
	size, err := a.mend()
	if err != nil {
		return errors.Join(err, a.unlock())
	}
	if limit := int64(a.limit.MaxMegabytes) << 20; limit > 0 && size > 0 && size+int64(len(record)) > limit {
		if size, err = a.rotate(size); err != nil {
			return err
		}
	}
	if now := time.Now(); now.Sub(a.pruned) > time.Hour {
		a.prune(now)
	}
	n, err := a.file.Write(record)
	if err == nil {
		a.known = size + int64(n)
	} else if n > 0 {
		// An incomplete record would also corrupt the next record.
		err = errors.Join(err, a.file.Truncate(size))
	}
	return errors.Join(err, a.unlock())
}

// writeToReader writes a record to a pipe, a socket or a terminal. It waits for the reader until ctx ends, so the reader gets
// whole records. After an incomplete record, it closes the file. The kernel then empties a pipe that nobody has open, so the next
// reader does not get the rest of the record.
func (a *appendFile) writeToReader(ctx context.Context, record []byte) error {
	write := func(b []byte, deadline time.Time) (int, error) {
		file := a.file                      // the function below can run after shut has set a.file to nil
		_ = file.SetWriteDeadline(deadline) // files without deadlines block in Write
		stop := context.AfterFunc(ctx, func() { _ = file.SetWriteDeadline(time.Unix(1, 0)) })
		defer stop()
		return file.Write(b)
	}
	n, err := write(record, time.Now().Add(a.patience))
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		a.problem(fmt.Errorf("%s: the reader is blocked, so requests wait until it reads again", a.path))
		rest, failed := write(record[n:], time.Time{})
		n, err = n+rest, failed
	}
	if err != nil && n > 0 {
		a.shut()
	}
	return err
}

// open opens the file if it is not open, or if the path now leads to another file after a rotation.
func (a *appendFile) open() error {
	if a.closed {
		return fs.ErrClosed
	}
	if a.file != nil {
		here, err1 := a.file.Stat()
		there, err2 := os.Stat(a.path)
		if err1 == nil && err2 == nil && os.SameFile(here, there) {
			return nil
		}
		a.shut()
	}
	flag := os.O_CREATE | os.O_APPEND | os.O_RDWR // mend reads
	if info, err := os.Stat(a.path); err == nil && !info.Mode().IsRegular() {
		flag = os.O_WRONLY // a pipe: writes must fail without a reader, so this process must not open it for reading
	}
	f, err := trusted.Open(a.path, flag)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	a.file, a.known, a.plain = f, 0, info.Mode().IsRegular()
	return nil
}

// mend removes an incomplete record at the end of the file, and returns the remaining size. The caller holds the file's lock,
// so no process is still writing this record.
func (a *appendFile) mend() (size int64, err error) {
	info, err := a.file.Stat()
	if err != nil {
		return 0, err
	}
	size = info.Size()
	if size == a.known {
		return size, nil
	}
	from := a.known
	if from > size { // the file was truncated
		from = 0
	}
	end, err := a.whole(a.file, from, size)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", a.path, err)
	}
	if end < size {
		if err := a.file.Truncate(end); err != nil {
			return 0, err
		}
		a.problem(fmt.Errorf("%s ends in an incomplete record, probably because a process was killed: removing %d bytes", a.path, size-end))
	}
	a.known = end
	return end, nil
}

// lockWait limits the wait for another process that is writing a record.
const lockWait = 2 * time.Second

func (a *appendFile) lock() error {
	deadline := time.Now().Add(lockWait)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := trusted.Lock(a.file)
		if !errors.Is(err, trusted.ErrLocked) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is locked by another process", a.path)
		}
		time.Sleep(wait)
	}
}

func (a *appendFile) unlock() error { return trusted.Unlock(a.file) }

func (a *appendFile) shut() {
	if err := a.file.Close(); err != nil {
		a.problem(fmt.Errorf("closing %s: %w", a.path, err))
	}
	a.file = nil
}

// rotateAgain is the time between two attempts to rename a file.
const rotateAgain = time.Hour

// rotate renames and closes the file, which has the given size, and opens and locks a new file. It returns the file's new size.
// Some files cannot be renamed, for example mounts and standard output. Such a file grows beyond the limit.
func (a *appendFile) rotate(size int64) (int64, error) {
	now := time.Now()
	if now.Sub(a.unrotated) < rotateAgain {
		return size, nil
	}
	path := a.file.Name() // trusted.Open resolved the symbolic links
	ext := filepath.Ext(path)
	backup := fmt.Sprintf("%s-%s%s", strings.TrimSuffix(path, ext), now.UTC().Format(stampFormat), ext)
	if err := os.Rename(path, backup); err != nil {
		a.unrotated = now
		a.problem(fmt.Errorf("cannot rename %s, so it grows beyond rotation.max_megabytes: %w", a.path, err))
		return size, nil
	}
	a.shut() // other processes that have the old file open notice this in open
	if err := a.open(); err != nil {
		return 0, err
	}
	a.prune(now)
	if err := a.lock(); err != nil {
		return 0, err
	}
	size, err := a.mend()
	if err != nil {
		return 0, errors.Join(err, a.unlock())
	}
	return size, nil
}

// prune removes rotated files beyond the limits.
func (a *appendFile) prune(now time.Time) {
	a.pruned = now
	path := a.file.Name()
	ext := filepath.Ext(path)
	base := strings.TrimSuffix(filepath.Base(path), ext)
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(base) + "-" + stampPattern + regexp.QuoteMeta(ext) + "$")
	pruneFiles(filepath.Dir(path), ours, a.limit, int64(a.limit.MaxMegabytes)<<20, now, a.problem)
}

func (a *appendFile) close() error {
	a.closed = true
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}
