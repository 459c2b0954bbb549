package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
)

// stampFormat is the format of the time in file names. It sorts by time, and has no colons because some file systems forbid them.
const stampFormat = "20060102T150405.000000000Z"

const stampPattern = `\d{8}T\d{6}\.\d{9}Z`

// numberedFiles writes each record to its own file, named <base>-<time>-<number>.pb.gz.
type numberedFiles struct {
	path    string // an existing folder for the files, or otherwise the prefix of their paths
	limit   config.Rotation
	problem func(error) // called with errors that do not prevent a write

	seq       uint64
	dir, base string // folder and prefix of the files' names, set by open
	ours      *regexp.Regexp
	tidied    time.Time // last run of removeLeftovers
}

// leftoverAge is the minimum age of a leftover file. Another process can still be writing a newer file.
const leftoverAge = time.Hour

const (
	pprofSuffix = ".pb.gz"
	unfinished  = ".tmp" // suffix of a file that is being written
)

func (n *numberedFiles) open() error {
	dir, base := n.path, "profile"
	if info, err := os.Stat(n.path); err != nil || !info.IsDir() {
		dir = filepath.Dir(n.path)
		base = strings.TrimSuffix(filepath.Base(n.path), pprofSuffix)
	}
	dir, err := trusted.Path(dir)
	if err != nil {
		return err
	}
	if err := checkParent(dir); err != nil {
		return err
	}
	if n.base != base {
		n.ours = regexp.MustCompile("^" + regexp.QuoteMeta(base) + "-" + stampPattern + `-\d{6,}` + regexp.QuoteMeta(pprofSuffix) + "$")
	}
	n.dir, n.base = dir, base
	n.removeLeftovers(time.Now())
	return nil
}

// removeLeftovers removes, once per leftoverAge, the unfinished files of killed processes. It only removes this user's regular
// files whose names have write's form.
func (n *numberedFiles) removeLeftovers(now time.Time) {
	if now.Sub(n.tidied) < leftoverAge {
		return
	}
	n.tidied = now
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		n.problem(err)
		return
	}
	for _, e := range entries {
		final, isTemp := strings.CutSuffix(e.Name(), unfinished)
		if !isTemp || !n.ours.MatchString(final) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < leftoverAge {
			continue
		}
		if owner, _ := trusted.ForeignOwner(info); int(owner) != os.Geteuid() {
			continue
		}
		if err := os.Remove(filepath.Join(n.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.problem(err)
		}
	}
}

func (n *numberedFiles) write(_ context.Context, record []byte) error {
	n.seq++
	now := time.Now().UTC()
	path := filepath.Join(n.dir, fmt.Sprintf("%s-%s-%06d%s", n.base, now.Format(stampFormat), n.seq, pprofSuffix))
	// The file gets a temporary name first, so programs that watch the folder see only complete files.
	temp := path + unfinished
	f, err := trusted.Open(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(record)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	pruneFiles(n.dir, n.ours, n.limit, 0, now, n.problem)
	return nil
}

func (n *numberedFiles) close() error { return nil }

// checkParent returns an error unless dir is a folder.
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

// pruneFiles removes files in dir whose names match ours. It removes files that are too old, and then the oldest files until the
// limits for number and size are met. reserved is the size of the current file. The size limit never removes the newest file.
// Names order the files, because they contain the time.
func pruneFiles(dir string, ours *regexp.Regexp, limit config.Rotation, reserved int64, now time.Time, problem func(error)) {
	if limit.MaxBackups == 0 && limit.MaxDays == 0 && limit.MaxTotalMegabytes == 0 {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		problem(err)
		return
	}
	total := reserved
	kept := 0
	slices.Reverse(entries)
	for _, e := range entries {
		if !ours.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // the file was removed in the meantime
		}
		total += info.Size()
		old := limit.MaxDays > 0 && now.Sub(info.ModTime()) > time.Duration(limit.MaxDays)*24*time.Hour
		many := limit.MaxBackups > 0 && kept >= limit.MaxBackups
		large := limit.MaxTotalMegabytes > 0 && kept > 0 && total > int64(limit.MaxTotalMegabytes)<<20
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
