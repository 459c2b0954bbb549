package export

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The storage folder holds one file per message. A message is tens of kilobytes or more, so the
// file system's own cost hardly counts, and in exchange there is nothing to compact: a message
// that was delivered is one unlink, a damaged file costs just that message, and the oldest can go
// without a look at the others. A file is written under a temporary name and renamed, and has
// checksums, so that it is there as a whole or not at all, at whatever point the process is killed.
//
// Layout, numbers in big endian:
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
	maxLayout    = math.MaxUint8
	maxOwner     = math.MaxUint16 - storeFixed - 1 - maxLayout
	// maxStoredBody is far above every receiver's limit; it only keeps a damaged length from
	// being believed.
	maxStoredBody = 1 << 30

	// maxSharers is how many processes can share a storage folder: the first has the folder itself, the others
	// have folders with a number below it.
	maxSharers = 16

	storeSuffix = ".msg"
	storeTemp   = ".tmp"
	storeLock   = "lock"
)

// noTime stands for the zero time in a file.
const noTime = math.MinInt64

var (
	errCorrupt = errors.New("corrupt file")
	// errUnknownFormat is of a file that a later version of this program has written.
	errUnknownFormat = errors.New("unknown format")
	errLocked        = errors.New("in use by other exporters")
	castagnoli       = crc32.MakeTable(crc32.Castagnoli)
)

// storage is the folder that keeps messages over a restart. One exporter at a time has it. The
// methods are safe for concurrent use on different messages.
type storage struct {
	dir  string
	lock *os.File
}

// stored is what openStorage found.
type stored struct {
	seq  uint64
	size int64 // of the body
	msg  Message
}

// inventory is what a storage folder holds.
type inventory struct {
	messages []stored // the oldest first
	last     uint64   // the highest number of a file that is there, whatever is in it
	damaged  int64    // files that held nothing usable, which are removed
	// unknown are files of a format that this program does not know, which stay: after a rollback, the version
	// that wrote them may come back. unknownErr says which format the last one has.
	unknown    int64
	unknownErr error
	// unreadable are files that could not be read, which stay: the disk's fault, perhaps for now only.
	// readErr is why the last one could not.
	unreadable int64
	readErr    error
}

// openStorage makes and locks the folder and lists what is in it, the oldest first, without the
// bodies.
func openStorage(dir string) (*storage, inventory, error) {
	if err := privateFolder(dir); err != nil {
		return nil, inventory{}, fmt.Errorf("sending_queue.storage: %w", err)
	}
	s, err := lockStorage(dir)
	for n := 2; errors.Is(err, errLocked) && n <= maxSharers; n++ {
		below := filepath.Join(dir, strconv.Itoa(n))
		if err = privateFolder(below); err == nil {
			s, err = lockStorage(below)
		}
	}
	if err != nil {
		return nil, inventory{}, fmt.Errorf("sending_queue.storage: %w", err)
	}
	s.adopt(dir)
	found, err := s.scan()
	if err != nil {
		return nil, inventory{}, errors.Join(fmt.Errorf("sending_queue.storage: %w", err), s.close())
	}
	return s, found, nil
}

// privateFolder makes dir, or checks that it is nobody else's and that nobody else can read it. An empty folder is made
// private: Kubernetes makes volumes with an open mode.
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
	if owner, ok := foreignOwner(info); ok {
		return fmt.Errorf("folder %s belongs to user %d, who could read and change what is stored: name a folder of user %d's own", dir, owner, os.Geteuid())
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("folder %s is open to other users (mode %04o): run chmod 700 on it, or name a folder of its own", dir, info.Mode().Perm())
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("folder %s is open to other users: %w", dir, err)
	}
	return nil
}

// lockStorage takes the folder's lock. The kernel drops it when the process ends, however it ends.
func lockStorage(dir string) (*storage, error) {
	path := filepath.Join(dir, storeLock)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		holder := make([]byte, 20)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		if errors.Is(err, errLocked) {
			who := ""
			if pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n]))); err == nil {
				who = fmt.Sprintf(" (process %d)", pid)
			}
			return nil, fmt.Errorf("folder %s, and the %d below it, are %w%s: give each exporter a folder of its own", filepath.Dir(dir), maxSharers-1, errLocked, who)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		// Only for the message above.
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &storage{dir: dir, lock: f}, nil
}

// adopt takes over what other processes that shared the folder dir have left, as far as they have ended. What
// cannot be taken over stays for the next start.
func (s *storage) adopt(dir string) {
	last := uint64(0)
	for _, seq := range storedIn(s.dir) {
		last = max(last, seq)
	}
	for n := 1; n <= maxSharers; n++ {
		other := dir
		if n > 1 {
			other = filepath.Join(dir, strconv.Itoa(n))
		}
		left := storedIn(other)
		if other == s.dir || len(left) == 0 || privateFolder(other) != nil {
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
		_ = o.close()
	}
}

// storedIn lists the messages in a folder, the oldest first.
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

// close gives the folder up.
func (s *storage) close() error { return s.lock.Close() }

// scan reads the headers of all messages.
func (s *storage) scan() (inv inventory, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return inventory{}, err
	}
	for _, e := range entries {
		name := e.Name()
		if isTemp(name) {
			// The process ended while it wrote this.
			_ = os.Remove(filepath.Join(s.dir, name))
			continue
		}
		seq, ok := storedSeq(name)
		if !ok || !e.Type().IsRegular() {
			continue // not ours, or the lock
		}
		found, err := s.readHead(seq)
		if !errors.Is(err, errCorrupt) {
			inv.last = max(inv.last, seq)
		}
		switch {
		case errors.Is(err, errCorrupt):
			inv.damaged++
			_ = os.Remove(s.path(seq))
		case errors.Is(err, errUnknownFormat):
			inv.unknown++
			inv.unknownErr = fmt.Errorf("%s: %w", filepath.Base(s.path(seq)), err)
		case err != nil:
			inv.unreadable++
			inv.readErr = err
		default:
			inv.messages = append(inv.messages, found)
		}
	}
	slices.SortFunc(inv.messages, func(a, b stored) int { return cmp.Compare(a.seq, b.seq) })
	return inv, nil
}

func (s *storage) path(seq uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d%s", seq, storeSuffix))
}

// isTemp tells the names under which write begins.
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
	// The largest number would leave none for the next message.
	return seq, err == nil && seq < math.MaxInt64
}

// write stores a message so that it survives the end of the process and of the machine.
func (s *storage) write(seq uint64, m Message) error {
	path := s.path(seq)
	temp := path + storeTemp
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|noFollow, 0o600)
	if err != nil {
		return err
	}
	head := storedHead(m)
	tail := binary.BigEndian.AppendUint32(nil, crc32.Checksum(m.Body, castagnoli))
	for _, part := range [][]byte{head, m.Body, tail} {
		if _, err = f.Write(part); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
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

// syncFolder makes the names in the folder survive the end of the machine. Not every file system can;
// the file's content is safe in any case.
func (s *storage) syncFolder() {
	if d, err := os.Open(s.dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// read gives back the body of a message. errCorrupt says that it is damaged, errUnknownFormat that it was replaced.
func (s *storage) read(seq uint64) ([]byte, error) {
	data, err := s.readFile(seq, maxStoredBody)
	if err != nil {
		return nil, err
	}
	_, body, err := decodeStored(data)
	return body, err
}

// remove deletes a message; one that is not there is no error.
func (s *storage) remove(seq uint64) error {
	if err := os.Remove(s.path(seq)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *storage) open(seq uint64) (*os.File, error) {
	return os.OpenFile(s.path(seq), os.O_RDONLY|noFollow, 0)
}

func (s *storage) readFile(seq uint64, limit int64) ([]byte, error) {
	f, err := s.open(seq)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// readHead reads a message without its body, and checks that the body's bytes are all there.
func (s *storage) readHead(seq uint64) (stored, error) {
	f, err := s.open(seq)
	if err != nil {
		return stored{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return stored{}, err
	}
	m, headLen, bodyLen, err := readHeadFrom(f)
	if err != nil {
		return stored{}, err
	}
	if info.Size() != int64(headLen)+bodyLen+4 {
		return stored{}, fmt.Errorf("%w: %d bytes instead of %d", errCorrupt, info.Size(), int64(headLen)+bodyLen+4)
	}
	return stored{seq: seq, size: bodyLen, msg: m}, nil
}
