package captures

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

const (
	// mostSharedFiles limits the addresses whose files are cached.
	mostSharedFiles = 1024
	// mapsPatience limits how long reading a process's mappings takes, because no captures are read during this time. At most
	// mapsStuck reads can hang at the same time.
	mapsPatience = time.Second
	mapsStuck    = 4
	// mapsBurst and mapsSlowdown limit the CPU time for reading mappings, because a program can have any number of locks. See
	// patience.Allowance.
	mapsBurst    = time.Second
	mapsSlowdown = 10
)

// sharedFiles adds to rows the file that is mapped at an address, if the mapping is shared. Processes can map a lock in such a
// file at different addresses. The metadata contains:
//
//	shared:
//	  address: shared_raw # the member of a row's value with the address; 0: none
//	  file: lock_file     # the member of its key for the path and the offset in the file
type sharedFiles struct {
	proc      string
	at        int // offset of the address in the value
	key, len  int // offset and size of the text in the key
	known     map[sharedKey]string
	patience  *patience.Runner
	allowance patience.Allowance
}

// sharedKey is an address in a process. The address space distinguishes processes that had the same PID.
type sharedKey struct {
	address    uint64
	pid, space uint32
}

// newSharedFiles returns nil if the gadget does not need shared files. key and value are the types of the map rows. root is the
// directory where the host's root file system is mounted.
func newSharedFiles(metadata *viper.Viper, key, value *btf.Struct, root string) (f *sharedFiles, err error) {
	if metadata == nil {
		return nil, nil
	}
	f = &sharedFiles{
		proc: filepath.Join("/", root, "proc"), known: map[sharedKey]string{},
		patience:  patience.New(mapsPatience, mapsStuck),
		allowance: patience.Allowance{Burst: mapsBurst, Slowdown: mapsSlowdown},
	}
	if f.at, err = unwinder.Member(value, metadata.GetString("address"), 8); err != nil {
		return nil, fmt.Errorf("shared.address: %w", err)
	}
	for _, m := range key.Members {
		if m.Name != metadata.GetString("file") {
			continue
		}
		n, err := btf.Sizeof(m.Type)
		if err != nil {
			return nil, fmt.Errorf("shared.file: %w", err)
		}
		f.key, f.len = int(m.Offset.Bytes()), n
	}
	if f.len < 8 {
		return nil, fmt.Errorf("shared.file: %s has no text member %q", key.Name, metadata.GetString("file"))
	}
	return f, nil
}

// put adds the file to a row's key. It omits the file if reading the mappings is too slow.
func (f *sharedFiles) put(r *record) {
	if f == nil {
		return
	}
	address := order.Uint64(r.value[f.at:])
	if address == 0 {
		return
	}
	p := r.process()
	id := sharedKey{address, p.PID, p.Space}
	text, ok := f.known[id]
	if !ok {
		if f.allowance.Wait() > 0 {
			return
		}
		text = f.read(id)
		if len(f.known) >= mostSharedFiles {
			clear(f.known)
		}
		f.known[id] = text
	}
	// The text ends with a zero byte. Long text loses its beginning, because the end is more informative.
	if most := f.len - 1; len(text) > most {
		text = "..." + strings.ToValidUTF8(text[len(text)-most+3:], "")
	}
	copy(r.key[f.key:][:f.len], text)
}

// read finds the file in the process's mappings. It returns "" if it cannot read the mappings, for example because the process
// has exited.
func (f *sharedFiles) read(id sharedKey) string {
	found := ""
	used, err := f.patience.Do(context.Background(), func() {
		dir, err := procfs.Open(f.proc, id.pid)
		if err != nil {
			return
		}
		defer dir.Close()
		if text, err := dir.Read("maps", procfs.MaxMaps); err == nil {
			found = sharedAt(text, id.address)
		}
	}, func() func() { return func() {} })
	f.allowance.Use(used)
	if err != nil { // found must not be used, because the read can still be running
		return ""
	}
	return found
}

// sharedAt returns the file and the offset that are mapped at an address, for example "/dev/shm/shop+0x40". maps is the text of
// /proc/PID/maps. For private memory and memory without a file, sharedAt returns "".
func sharedAt(maps []byte, address uint64) string {
	for m := range procfs.Mappings(maps) {
		if m.Perms[3] == 's' && address >= m.Start && address < m.End && m.Path != "" {
			return fmt.Sprintf("%s+%#x", m.Path, m.Offset+address-m.Start)
		}
	}
	return ""
}
