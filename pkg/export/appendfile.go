package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// appendFile appends records to one file. When the next one would make it larger than allowed, the file is
// renamed with the time in its name, and old ones are removed. Records are never split, and a record that
// a process which was killed has left half written is cut off before the next. It needs no goroutine:
// everything happens in write.
//
// Several processes may append to one file: each holds the file's lock while it writes.
type appendFile struct {
	path    string
	limit   config.Rotation
	whole   recordEnd
	problem func(error) // told what does not keep records from being written

	mu     sync.Mutex
	file   *os.File
	known  int64 // bytes of it that are known to be whole records
	plain  bool  // a regular file: can be locked, cut and renamed
	pruned time.Time
	closed bool
}

func newAppendFile(path string, limit config.Rotation, whole recordEnd, problem func(error)) *appendFile {
	return &appendFile{path: path, limit: limit, whole: whole, problem: problem}
}

func (a *appendFile) open() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reopen()
}

func (a *appendFile) write(record []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.reopen(); err != nil {
		return err
	}
	if !a.plain {
		_, err := a.file.Write(record)
		return err
	}
	if err := a.lock(); err != nil {
		return err
	}
	size, err := a.mend()
	if err != nil {
		return errors.Join(err, a.unlock())
	}
	if limit := int64(a.limit.MaxMegabytes) << 20; limit > 0 && size > 0 && size+int64(len(record)) > limit {
		// Whoever holds the old file open finds that it was moved.
		if err := a.rotate(); err != nil {
			return err
		}
		if err := a.lock(); err != nil {
			return err
		}
		if size, err = a.mend(); err != nil {
			return errors.Join(err, a.unlock())
		}
	}
	if now := time.Now(); now.Sub(a.pruned) > time.Hour {
		a.prune(now)
	}
	n, err := a.file.Write(record)
	if err == nil {
		a.known = size + int64(n)
	} else if n > 0 {
		// Half a record would spoil the next one too.
		err = errors.Join(err, a.file.Truncate(size))
	}
	return errors.Join(err, a.unlock())
}

// reopen opens the file, again if somebody has moved it away.
func (a *appendFile) reopen() error {
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
		flag = os.O_WRONLY // were this process a reader of the pipe, too, it would not notice that the others have gone
	}
	f, err := openTrusted(a.path, flag)
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

// mend cuts off what is no whole record at the end, and returns the size of the rest. The file is locked:
// nobody is about to write the missing part.
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
	if from > size { // somebody has cut it
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
		a.problem(fmt.Errorf("%s ended in half a record, as a process leaves it that is killed: %d bytes are cut off", a.path, size-end))
	}
	a.known = end
	return end, nil
}

// lockWait is how long to wait for another process to have written its record.
const lockWait = 2 * time.Second

func (a *appendFile) lock() error {
	deadline := time.Now().Add(lockWait)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := lockFile(a.file)
		if !errors.Is(err, errLocked) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is locked by another process", a.path)
		}
		time.Sleep(wait)
	}
}

func (a *appendFile) unlock() error { return unlockFile(a.file) }

func (a *appendFile) shut() {
	if err := a.file.Close(); err != nil {
		a.problem(fmt.Errorf("closing %s: %w", a.path, err))
	}
	a.file = nil
}

// rotate renames the file and opens a new one. It gives up the lock.
func (a *appendFile) rotate() error {
	now := time.Now().UTC()
	path := a.file.Name() // without links
	ext := filepath.Ext(path)
	backup := fmt.Sprintf("%s-%s%s", strings.TrimSuffix(path, ext), now.Format(stampFormat), ext)
	err := os.Rename(path, backup)
	a.shut()
	if err != nil {
		return err
	}
	if err := a.reopen(); err != nil {
		return err
	}
	a.prune(now)
	return nil
}

// prune removes the old files that are too many, too old or too large together.
func (a *appendFile) prune(now time.Time) {
	a.pruned = now
	path := a.file.Name()
	ext := filepath.Ext(path)
	base := strings.TrimSuffix(filepath.Base(path), ext)
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(base) + "-" + stampPattern + regexp.QuoteMeta(ext) + "$")
	pruneFiles(filepath.Dir(path), ours, a.limit, int64(a.limit.MaxMegabytes)<<20, now, a.problem)
}

func (a *appendFile) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}
