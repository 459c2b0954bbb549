// Package spool keeps messages in a folder across restarts.
package spool

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// The storage folder contains one file per message. A message is tens of kilobytes or larger, so a file per message costs little,
// and nothing needs compaction. Delivery removes one file, and a damaged file loses one message. The oldest message can be
// dropped without reading other messages. A file contains checksums. It is written under a temporary name and then renamed. So
// after a crash at any point, a message is complete or absent.
//
// The file layout follows. Numbers are big endian.
//
//	magic "IGOP", format version (2 bytes), length of the header (2 bytes)
//	header: rows, samples, profiles, start, end (8 bytes each; times in Unix nanoseconds, the
//	        smallest number for none), length of the body (8 bytes), from version 2 on the layout of
//	        the body (length in a byte, text), owner (the rest)
//	CRC-32C of all before (4 bytes)
//	body
//	CRC-32C of the body (4 bytes)
const (
	storeMagic   = "IGOP"
	storeVersion = 2
	storePrefix  = len(storeMagic) + 4
	storeFixed   = 6 * 8
	maxOwner     = math.MaxUint16 - storeFixed - 1 - math.MaxUint8
	// maxStoredBody is far above the limit of every receiver. It only catches damaged lengths.
	maxStoredBody = 1 << 30

	// maxSharers limits the processes that share a storage folder. The first process uses the folder itself, and the other
	// processes use numbered folders in it.
	maxSharers = 16

	storeSuffix = ".msg"
	storeTemp   = ".tmp"
	storeLock   = "lock"
)

// noTime represents the zero time.Time in a file.
const noTime = math.MinInt64

var (
	// ErrCorrupt means that a file is damaged.
	ErrCorrupt = errors.New("corrupt file")
	// errUnknownFormat means that a later version of this program wrote the file.
	errUnknownFormat = errors.New("unknown format")
	castagnoli       = crc32.MakeTable(crc32.Castagnoli)
)

// Folder keeps messages across restarts. It belongs to the exporter that holds its lock. The methods are safe for concurrent use
// with different messages.
type Folder struct {
	Dir string

	lock   *os.File
	layout string // the otlp_version for files of version 1, which do not contain it
}

// Stored is a message that Open found in the folder.
type Stored struct {
	Message wire.Message // without its body
	Seq     uint64       // its number, for Read and Remove
	Size    int64        // size of the body
}

// Inventory is the content of a storage folder.
type Inventory struct {
	Messages []Stored // oldest first
	Last     uint64   // the highest number of the remaining files, readable or not
	Damaged  int64    // corrupt files, which were removed
	// Unknown counts files in an unknown format. They stay, because the newer version can return after a rollback. UnknownErr
	// is the error for the last such file.
	Unknown    int64
	UnknownErr error
	// Unreadable counts files that could not be read. They stay, because the disk can have a temporary fault. ReadErr is the
	// error for the last such file.
	Unreadable int64
	ReadErr    error
}

// Open creates and locks the folder dir, and lists its messages without their bodies. If another process uses dir, Open uses one
// of up to maxSharers numbered folders in dir. It also adopts the messages that exited processes left in the other folders.
// layout is the otlp_version in the settings.
func Open(dir, layout string) (*Folder, Inventory, error) {
	if err := privateFolder(dir); err != nil {
		return nil, Inventory{}, fmt.Errorf("sending_queue.storage: %w", err)
	}
	s, err := lockStorage(dir)
	for n := 2; errors.Is(err, trusted.ErrLocked) && n <= maxSharers; n++ {
		below := filepath.Join(dir, strconv.Itoa(n))
		if err = privateFolder(below); err == nil {
			s, err = lockStorage(below)
		}
	}
	if err != nil {
		return nil, Inventory{}, fmt.Errorf("sending_queue.storage: %w", err)
	}
	s.layout = layout
	s.adopt(dir)
	found, err := s.scan()
	if err != nil {
		return nil, Inventory{}, errors.Join(fmt.Errorf("sending_queue.storage: %w", err), s.Close())
	}
	return s, found, nil
}

// privateFolder creates dir, or checks that it belongs to this user and that other users have no access. Kubernetes creates
// volumes to which other users have access. If such a folder is empty, privateFolder removes the access.
func privateFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	if owner, ok := trusted.ForeignOwner(info); ok {
		return fmt.Errorf("folder %s belongs to user %d, who could read and change stored data: name a folder that belongs to user %d", dir, owner, os.Geteuid())
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("folder %s is open to other users (mode %04o): run chmod 700 on it, or name another folder", dir, info.Mode().Perm())
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("folder %s is open to other users: %w", dir, err)
	}
	return nil
}

// LockFolder creates a folder to which other users have no access, or checks an existing folder. It locks the folder until the
// returned file is closed.
func LockFolder(dir string) (*os.File, error) {
	if err := privateFolder(dir); err != nil {
		return nil, err
	}
	s, err := lockStorage(dir)
	switch {
	case errors.Is(err, trusted.ErrLocked):
		return nil, fmt.Errorf("folder %s is %w: give each process its own folder", dir, trusted.ErrLocked)
	case err != nil:
		return nil, err
	}
	return s.lock, nil
}

// lockStorage locks the folder. The kernel releases the lock when the process exits or is killed.
func lockStorage(dir string) (*Folder, error) {
	path := filepath.Join(dir, storeLock)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|trusted.NoFollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := trusted.Lock(f); err != nil {
		holder := make([]byte, 20)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		if errors.Is(err, trusted.ErrLocked) {
			who := ""
			if pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n]))); err == nil {
				who = fmt.Sprintf(" (process %d)", pid)
			}
			return nil, fmt.Errorf("folder %s and the %d numbered folders in it are %w%s: give each exporter its own folder", filepath.Dir(dir), maxSharers-1, trusted.ErrLocked, who)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		// Other processes show the process ID in the error message above.
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Folder{Dir: dir, lock: f}, nil
}

// adopt moves the messages of exited processes into s from the other folders in dir. If a folder is not locked, its process has
// exited. The messages get higher numbers than the messages in s. Messages that cannot be moved stay for the next start.
func (s *Folder) adopt(dir string) {
	last := uint64(0)
	for _, seq := range storedIn(s.Dir) {
		last = max(last, seq)
	}
	for n := 1; n <= maxSharers; n++ {
		other := dir
		if n > 1 {
			other = filepath.Join(dir, strconv.Itoa(n))
		}
		left := storedIn(other)
		if other == s.Dir || len(left) == 0 || privateFolder(other) != nil {
			continue
		}
		o, err := lockStorage(other)
		if err != nil {
			continue
		}
		for _, seq := range left {
			if os.Rename(o.path(seq), s.path(last+1)) == nil {
				last++
			}
		}
		_ = o.Close()
	}
}

// storedIn returns the numbers of the messages in a folder, oldest first.
func storedIn(dir string) (list []uint64) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if seq, ok := storedSeq(e.Name()); ok && e.Type().IsRegular() {
			list = append(list, seq)
		}
	}
	return list
}

// Close releases the folder's lock.
func (s *Folder) Close() error { return s.lock.Close() }

// scan reads the headers of all messages, and removes corrupt files and the remains of interrupted writes.
func (s *Folder) scan() (inv Inventory, err error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return Inventory{}, err
	}
	for _, e := range entries {
		name := e.Name()
		if isTemp(name) {
			// The process exited during this write.
			_ = os.Remove(filepath.Join(s.Dir, name))
			continue
		}
		seq, ok := storedSeq(name)
		if !ok || !e.Type().IsRegular() {
			continue // not a message
		}
		found, err := s.readHead(seq)
		if !errors.Is(err, ErrCorrupt) {
			inv.Last = max(inv.Last, seq)
		}
		switch {
		case errors.Is(err, ErrCorrupt):
			inv.Damaged++
			_ = os.Remove(s.path(seq))
		case errors.Is(err, errUnknownFormat):
			inv.Unknown++
			inv.UnknownErr = fmt.Errorf("%s: %w", filepath.Base(s.path(seq)), err)
		case err != nil:
			inv.Unreadable++
			inv.ReadErr = err
		default:
			inv.Messages = append(inv.Messages, found)
		}
	}
	slices.SortFunc(inv.Messages, func(a, b Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	return inv, nil
}

func (s *Folder) path(seq uint64) string {
	return filepath.Join(s.Dir, fmt.Sprintf("%020d%s", seq, storeSuffix))
}

// isTemp reports whether name is a temporary name from Write.
func isTemp(name string) bool {
	final, ok := strings.CutSuffix(name, storeTemp)
	if !ok {
		return false
	}
	_, ok = storedSeq(final)
	return ok
}

func storedSeq(name string) (uint64, bool) {
	num, ok := strings.CutSuffix(name, storeSuffix)
	if !ok || len(num) != 20 {
		return 0, false
	}
	seq, err := strconv.ParseUint(num, 10, 64)
	// A number near the maximum would leave none for later messages.
	return seq, err == nil && seq < math.MaxInt64
}

// Write stores a message durably. The message survives a crash of the process or the machine.
func (s *Folder) Write(seq uint64, m wire.Message) error {
	path := s.path(seq)
	temp := path + storeTemp
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|trusted.NoFollow, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(AppendRecord(nil, m)); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	s.syncFolder()
	return nil
}

// syncFolder makes the names in the folder durable. It ignores errors, because not every file system supports this.
func (s *Folder) syncFolder() {
	if d, err := os.Open(s.Dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// Read returns a message's body in the current layout. It returns readHeadFrom's errors, or an error if the file cannot be opened.
func (s *Folder) Read(seq uint64) ([]byte, error) {
	f, err := s.open(seq)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, body, err := readRecord(f)
	if err != nil {
		return nil, err
	}
	if body, err = wire.FromLayout(body, cmp.Or(head.layout, s.layout)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return body, nil
}

// Remove deletes a message. A missing file is not an error.
func (s *Folder) Remove(seq uint64) error {
	if err := os.Remove(s.path(seq)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *Folder) open(seq uint64) (*os.File, error) {
	return os.OpenFile(s.path(seq), os.O_RDONLY|trusted.NoFollow, 0)
}

// readHead reads a message without its body, and checks the length of the file.
func (s *Folder) readHead(seq uint64) (Stored, error) {
	f, err := s.open(seq)
	if err != nil {
		return Stored{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Stored{}, err
	}
	head, err := readHeadFrom(f)
	if err != nil {
		return Stored{}, err
	}
	if want := int64(head.len) + head.body + 4; info.Size() != want {
		return Stored{}, fmt.Errorf("%w: %d bytes instead of %d", ErrCorrupt, info.Size(), want)
	}
	return Stored{Seq: seq, Size: head.body, Message: head.msg}, nil
}
