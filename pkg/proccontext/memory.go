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

// process is the result of reading a process's memory. Its descriptors never refer to a later process with the same PID.
type process struct {
	place
	payload []byte // empty if the context is known
	err     error

	memory, pagemap *os.File
}

// find copies the context of the process in proc, unless it is known. It returns errNone if there is no context.
func (p *process) find(proc string, of Process, known place) error {
	dir, err := procfs.Open(proc, of.PID)
	if err != nil {
		return err
	}
	defer dir.Close()
	if exe, _, err := dir.Executable(); of.Inode != 0 && (err != nil || exe != of.Inode) {
		return cmp.Or(err, os.ErrNotExist) // the PID now belongs to another process
	}
	if p.began, err = dir.Began(proc, of.PID); err != nil {
		return err
	}
	if p.memory, err = dir.Open("mem"); err != nil {
		return err
	}
	defer p.memory.Close()
	if p.pagemap, err = dir.Open("pagemap"); err != nil {
		return err
	}
	defer p.pagemap.Close()
	if p.began == known.began {
		if err := p.context(known.address, known.published); !errors.Is(err, errNone) {
			return err
		}
	}
	maps, err := dir.Read("maps", procfs.MaxMaps)
	if err != nil || len(maps) == 0 {
		return cmp.Or(err, os.ErrNotExist)
	}
	if !bytes.Contains(maps, signature) { // true for most processes, and faster than parsing
		return errNone
	}
	tries := 0
	for m := range procfs.Mappings(maps) {
		if tries == maxMappings || !mayHaveContext(m) {
			continue
		}
		tries++
		if err := p.context(m.Start, 0); !errors.Is(err, errNone) {
			return err
		}
	}
	return errNone
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

// context copies the payload of the context at an address, and sets the place. If the time of publication equals known, it copies
// nothing. If the context is changed meanwhile, the error is errBusy.
func (p *process) context(at, known uint64) error {
	var header, again [headerSize]byte
	err := p.read(header[:], at)
	if err != nil {
		return err
	}
	p.address, p.published = at, binary.NativeEndian.Uint64(header[publishedAt:])
	n := binary.NativeEndian.Uint32(header[sizeAt:])
	switch {
	case !bytes.HasPrefix(header[:], signature), binary.NativeEndian.Uint32(header[versionAt:]) != version:
		return errNone
	case p.published == 0:
		return errBusy
	case p.published == known:
		return nil
	case n == 0 || n > maxPayload:
		err = fmt.Errorf("%w: a payload of %d bytes", errNone, n)
	default:
		p.payload = make([]byte, n)
		err = p.read(p.payload, binary.NativeEndian.Uint64(header[payloadAt:]))
	}
	// An unfinished change can cause any error above. Each change has another time, so it also shows in the header.
	if failed := p.read(again[:], at); failed != nil || again != header {
		err = cmp.Or(failed, errBusy)
	}
	if err != nil {
		p.payload = nil
	}
	return err
}
