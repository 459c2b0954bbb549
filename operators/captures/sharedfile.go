package captures

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/spf13/viper"
)

const (
	// mostSharedFiles is how many addresses' files are remembered.
	mostSharedFiles = 1024
	// maxMapsBytes is how much of /proc/PID/maps is read.
	maxMapsBytes = 8 << 20
)

// sharedFiles puts the file that an address belongs to into rows, where processes share it: a lock in such a file is one for all of
// them, at addresses that differ. The metadata says:
//
//	shared:
//	  address: shared_raw # the member of a row's value with the address, 0: none
//	  file: lock_file     # the member of its key that gets the path and the place in the file
type sharedFiles struct {
	proc     string
	at       int // of the address
	key, len int // of the text
	known    map[otherKey]string
}

// newSharedFiles returns nil where a gadget does not ask for it. root is the folder that has the host's root.
func newSharedFiles(metadata *viper.Viper, rows *ebpf.MapSpec, root string) (*sharedFiles, error) {
	if metadata == nil {
		return nil, nil
	}
	key, okKey := rows.Key.(*btf.Struct)
	value, okValue := rows.Value.(*btf.Struct)
	if !okKey || !okValue {
		return nil, fmt.Errorf("shared: the map %q has no structs as key and value", rows.Name)
	}
	f := &sharedFiles{proc: filepath.Join("/", root, "proc"), known: map[otherKey]string{}}
	var ok bool
	if f.at, ok = offsetOf(value, metadata.GetString("address"), 8); !ok {
		return nil, fmt.Errorf("shared.address: %s has no member %q of 8 bytes", value.Name, metadata.GetString("address"))
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
		return nil, fmt.Errorf("shared.file: %s has no text %q", key.Name, metadata.GetString("file"))
	}
	return f, nil
}

// put puts the file into a row's key.
func (f *sharedFiles) put(r *record) {
	if f == nil {
		return
	}
	address := order.Uint64(r.value[f.at:])
	if address == 0 {
		return
	}
	id := otherKey{Address: address, PID: r.process().PID}
	text, ok := f.known[id]
	if !ok {
		text = f.read(id)
		if len(f.known) >= mostSharedFiles {
			clear(f.known)
		}
		f.known[id] = text
	}
	// One byte stays 0. What does not fit is cut off at its beginning: the end says more.
	if most := f.len - 1; len(text) > most {
		text = "..." + strings.ToValidUTF8(text[len(text)-most+3:], "")
	}
	copy(r.key[f.key:][:f.len], text)
}

// read finds the file in what the process has mapped. It returns "" for a process that has ended.
func (f *sharedFiles) read(id otherKey) string {
	file, err := os.Open(filepath.Join(f.proc, strconv.FormatUint(uint64(id.PID), 10), "maps"))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMapsBytes))
	if err != nil {
		return ""
	}
	return sharedAt(text, id.Address)
}

// sharedAt returns the file of an address and the place in it, "/dev/shm/shop+0x40", by the text of /proc/PID/maps; "" where it is in
// none, or in memory that is the process's own.
func sharedAt(maps []byte, address uint64) string {
	for line := range bytes.Lines(maps) {
		fields := strings.Fields(string(line))
		if len(fields) < 6 || len(fields[1]) != 4 || fields[1][3] != 's' {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err := strconv.ParseUint(from, 16, 64)
		if err != nil {
			continue
		}
		end, err := strconv.ParseUint(to, 16, 64)
		if err != nil || address < start || address >= end {
			continue
		}
		offset, err := strconv.ParseUint(fields[2], 16, 64)
		if err != nil {
			continue
		}
		// A path may have spaces. The kernel writes the ends of lines as \012.
		at := bytes.Index(line, []byte(fields[5]))
		if at < 0 {
			continue
		}
		path := strings.TrimSuffix(string(line[at:]), "\n")
		return fmt.Sprintf("%s+%#x", path, offset+address-start)
	}
	return ""
}
