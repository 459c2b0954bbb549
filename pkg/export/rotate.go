package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// stampFormat dates files; it sorts as time does and is free of colons.
const stampFormat = "20060102T150405.000000000Z"

const stampPattern = `\d{8}T\d{6}\.\d{9}Z`

// checkParent wants the folder that files go to.
func checkParent(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	return nil
}

// rotatingFile appends records to one file. When the next one would make it larger than allowed,
// the file is renamed with the time in its name, and old ones are removed by number and age.
// Records are never split. It needs no goroutine: everything happens in write.
type rotatingFile struct {
	path    string
	limit   config.Rotation
	problem func(error) // told what does not keep records from being written

	mu     sync.Mutex
	file   *os.File
	size   int64
	plain  bool // a regular file: can be cut and renamed
	pruned time.Time
	closed bool
}

func newRotatingFile(path string, limit config.Rotation, problem func(error)) *rotatingFile {
	return &rotatingFile{path: path, limit: limit, problem: problem}
}

func (r *rotatingFile) write(record []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fs.ErrClosed
	}
	if err := r.open(); err != nil {
		return err
	}
	if limit := int64(r.limit.MaxMegabytes) << 20; r.plain && limit > 0 && r.size > 0 && r.size+int64(len(record)) > limit {
		if err := r.rotate(); err != nil {
			return err
		}
	}
	if now := time.Now(); now.Sub(r.pruned) > time.Hour {
		r.prune(now)
	}
	n, err := r.file.Write(record)
	if err == nil {
		r.size += int64(n)
		return nil
	}
	if n > 0 && r.plain {
		// Half a record would spoil the next one too.
		if cut := r.file.Truncate(r.size); cut != nil {
			err = errors.Join(err, cut)
		}
	}
	return err
}

// open opens the file, again if somebody has moved it away.
func (r *rotatingFile) open() error {
	if r.file != nil {
		here, err1 := r.file.Stat()
		there, err2 := os.Stat(r.path)
		if err1 == nil && err2 == nil && os.SameFile(here, there) {
			r.size = here.Size()
			return nil
		}
		r.shut()
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.file, r.size, r.plain = f, info.Size(), info.Mode().IsRegular()
	return nil
}

func (r *rotatingFile) shut() {
	if err := r.file.Close(); err != nil {
		r.problem(fmt.Errorf("closing %s: %w", r.path, err))
	}
	r.file = nil
}

func (r *rotatingFile) rotate() error {
	r.shut()
	now := time.Now().UTC()
	ext := filepath.Ext(r.path)
	backup := fmt.Sprintf("%s-%s%s", strings.TrimSuffix(r.path, ext), now.Format(stampFormat), ext)
	if err := os.Rename(r.path, backup); err != nil {
		return err
	}
	r.prune(now)
	return r.open()
}

// prune removes the backups that are too many or too old.
func (r *rotatingFile) prune(now time.Time) {
	r.pruned = now
	ext := filepath.Ext(r.path)
	base := strings.TrimSuffix(filepath.Base(r.path), ext)
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(base) + "-" + stampPattern + regexp.QuoteMeta(ext) + "$")
	pruneFiles(filepath.Dir(r.path), ours, config.Rotation{MaxBackups: r.limit.MaxBackups, MaxDays: r.limit.MaxDays}, now, r.problem)
}

func (r *rotatingFile) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// pruneFiles removes those of our files in dir that are too many, too old or, all together, too
// large. Names hold the time: the last ones are the newest.
func pruneFiles(dir string, ours *regexp.Regexp, limit config.Rotation, now time.Time, problem func(error)) {
	if limit == (config.Rotation{}) {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		problem(err)
		return
	}
	var total int64
	kept := 0
	slices.Reverse(entries)
	for _, e := range entries {
		if !ours.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // gone meanwhile
		}
		total += info.Size()
		old := limit.MaxDays > 0 && now.Sub(info.ModTime()) > time.Duration(limit.MaxDays)*24*time.Hour
		many := limit.MaxBackups > 0 && kept >= limit.MaxBackups
		large := limit.MaxMegabytes > 0 && kept > 0 && total > int64(limit.MaxMegabytes)<<20
		if !old && !many && !large {
			kept++
			continue
		}
		total -= info.Size()
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problem(err)
		}
	}
}

// numberedFiles writes each record to a file of its own, named after a prefix, the time and a
// number. The limits of the rotation hold for all of them: max_backups is their number,
// max_megabytes their size together.
type numberedFiles struct {
	dir, base string
	ours      *regexp.Regexp
	limit     config.Rotation
	problem   func(error)

	mu  sync.Mutex
	seq uint64
}

const pprofSuffix = ".pb.gz"

// newNumberedFiles takes a folder or a prefix.
func newNumberedFiles(path string, limit config.Rotation, problem func(error)) *numberedFiles {
	n := &numberedFiles{limit: limit, problem: problem}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		n.dir, n.base = path, "profile"
	} else {
		n.dir = filepath.Dir(path)
		n.base = strings.TrimSuffix(filepath.Base(path), pprofSuffix)
	}
	n.ours = regexp.MustCompile("^" + regexp.QuoteMeta(n.base) + "-" + stampPattern + `-\d{6,}` + regexp.QuoteMeta(pprofSuffix) + "$")
	return n
}

func (n *numberedFiles) write(record []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seq++
	now := time.Now().UTC()
	path := filepath.Join(n.dir, fmt.Sprintf("%s-%s-%06d%s", n.base, now.Format(stampFormat), n.seq, pprofSuffix))
	// Under a temporary name first: who watches the folder sees whole files only.
	temp := path + storeTemp
	err := os.WriteFile(temp, record, 0o600)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	pruneFiles(n.dir, n.ours, n.limit, now, n.problem)
	return nil
}

func (n *numberedFiles) close() error { return nil }
