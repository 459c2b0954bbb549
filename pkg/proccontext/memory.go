package proccontext

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// A context's header is at the start of a mapping. It begins with the signature (8 bytes), the version and the payload's size
// (4 bytes each). The time of publication and the payload's address follow (8 bytes each).
const (
	headerSize  = 32
	versionAt   = 8
	sizeAt      = 12
	publishedAt = 16
	payloadAt   = 24
	version     = 2
)

var signature = []byte("OTEL_CTX")

const (
	maxPayload  = 64 << 10
	maxMappings = 4 // mappings that may hold contexts
)

// mappings are the possible names of a context's mapping. The kernel appends " (deleted)" to the name of a memfd.
var mappings = []string{"[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX", "/memfd:OTEL_CTX (deleted)"}

var (
	errNone = errors.New("the process publishes no context")
	errBusy = errors.New("the context is being updated")
)

// process is a process with its memory open for reading. Its descriptors never refer to a later process with the same PID.
type process struct {
	dir             procfs.Dir
	memory, pagemap *os.File
	began           uint64 // in nanoseconds since boot
}

// open opens the process in proc. The caller closes it, also after an error.
func (p *process) open(proc string, of Process) (err error) {
	if p.dir, err = procfs.Open(proc, of.PID); err != nil {
		return err
	}
	if p.began, err = p.dir.Began(proc, of.PID); err != nil {
		return err
	}
	if exe, _, err := p.dir.Executable(); of.Inode != 0 && (err != nil || exe != of.Inode) {
		return cmp.Or(err, os.ErrNotExist) // the PID now belongs to another process
	}
	if p.memory, err = p.dir.Open("mem"); err != nil {
		return err
	}
	p.pagemap, err = p.dir.Open("pagemap")
	return err
}

func (p *process) close() {
	p.dir.Close()
	p.memory.Close() // Close of nil does nothing
	p.pagemap.Close()
}

func mayHaveContext(m procfs.Mapping) bool {
	return m.Perms[0] == 'r' && !m.Executes() && slices.Contains(mappings, m.Path)
}

// These are the bits of an entry of /proc/PID/pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageEntry   = 8
)

// read only reads memory that is present. It does not touch pages that a file system or another program must load, because that
// could block forever.
func (p *process) read(b []byte, at uint64) error {
	if at > math.MaxInt64-uint64(len(b)) {
		return fmt.Errorf("%w: an address outside user space", errNone)
	}
	size := uint64(os.Getpagesize())
	first, last := at/size, (at+uint64(len(b))-1)/size
	pages := make([]byte, (last-first+1)*pageEntry)
	_, _ = p.pagemap.ReadAt(pages, int64(first*pageEntry)) // an entry that cannot be read stays 0, like that of a missing page
	for entry := range slices.Chunk(pages, pageEntry) {
		if binary.NativeEndian.Uint64(entry)&(pagePresent|pageSwapped) == 0 {
			return fmt.Errorf("%w: a missing page", errNone)
		}
	}
	if _, err := p.memory.ReadAt(b, int64(at)); err != nil {
		return fmt.Errorf("%w: reading memory: %w", errNone, err)
	}
	return nil
}

// context copies the payload of the context at an address, and returns the time of its publication. If that time equals known,
// it copies nothing. If the context is changed meanwhile, the error is errBusy.
func (p *process) context(at, known uint64) (payload []byte, published uint64, err error) {
	var header, again [headerSize]byte
	if err := p.read(header[:], at); err != nil {
		return nil, 0, err
	}
	published = binary.NativeEndian.Uint64(header[publishedAt:])
	n := binary.NativeEndian.Uint32(header[sizeAt:])
	switch {
	case !bytes.HasPrefix(header[:], signature), binary.NativeEndian.Uint32(header[versionAt:]) != version:
		return nil, 0, errNone
	case published == 0:
		return nil, 0, errBusy
	case published == known:
		return nil, published, nil
	case n == 0 || n > maxPayload:
		err = fmt.Errorf("%w: a payload of %d bytes", errNone, n)
	default:
		payload = make([]byte, n)
		err = p.read(payload, binary.NativeEndian.Uint64(header[payloadAt:]))
	}
	// An unfinished change can cause any error above. Each change has another time, so it also shows in the header.
	if failed := p.read(again[:], at); failed != nil {
		err = failed
	} else if again != header {
		err = errBusy
	}
	if err != nil {
		return nil, 0, err
	}
	return payload, published, nil
}
