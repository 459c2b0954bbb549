package procmap

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// mount is a line of mountinfo.
type mount struct {
	id      uint64
	dev     device
	point   string
	fstype  string // without the part after a dot, as in fuse.sshfs
	options string // of the file system
	avoid   bool   // a process or a network serves it
}

// parseMounts parses mountinfo: "36 35 98:0 /root /point options - type source options".
func parseMounts(text []byte) []mount {
	var mounts []mount
	for line := range bytes.Lines(text) {
		before, after, ok := strings.Cut(string(bytes.TrimSuffix(line, []byte("\n"))), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		fstype, rest, _ := strings.Cut(after, " ")
		_, options, _ := strings.Cut(rest, " ")
		fstype, _, _ = strings.Cut(fstype, ".")
		major, minor, _ := strings.Cut(fields[2], ":")
		id, err := strconv.ParseUint(fields[0], 10, 64)
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		if err != nil || err1 != nil || err2 != nil {
			continue
		}
		mounts = append(mounts, mount{id, device{uint32(ma), uint32(mi)}, unescape(fields[4]), fstype, options, slices.Contains(mayNotAnswer, fstype)})
	}
	return mounts
}

// unescape decodes mountinfo's escapes of blanks and backslashes, for example \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// findMount returns the mount of a path, or nil.
func findMount(mounts []mount, path string) *mount {
	var found *mount
	for i := range mounts { // if several mounts have the same place, the last one wins
		m := &mounts[i]
		below := m.point == "/" || path == m.point || strings.HasPrefix(path, m.point) && path[len(m.point)] == '/'
		if below && (found == nil || len(m.point) >= len(found.point)) {
			found = m
		}
	}
	return found
}

// readMounts returns the mounts of the process whose /proc directory is dir, or nil on an error.
func readMounts(dir procfs.Dir) []mount {
	text, err := dir.Read("mountinfo", maxMountinfo)
	if err != nil {
		return nil
	}
	return parseMounts(text)
}

// verdict holds whether a device's file system might not answer, and how long this result is valid.
type verdict struct {
	avoid bool
	until time.Time
}

const (
	keepVerdict = time.Minute
	maxVerdicts = 4096
)

// avoided reports whether files on a device must not even be opened with O_PATH, because the file system might not answer. It
// uses the mounts of the process whose /proc directory is dir. judge decides about all other devices.
func (r *Resolver) avoided(dir procfs.Dir, dev device) bool {
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	now := time.Now()
	if r.isStuck(dev, now) {
		return true
	}
	// The kernel soon reuses the device number of a file system without a disk. Only judge can trust such a number, because it
	// has the open file. So a negative verdict for such a number is not reused.
	if v, ok := r.avoid[dev]; ok && now.Before(v.until) && (!v.avoid || dev.major != 0) {
		return v.avoid
	}
	if len(r.avoid) >= maxVerdicts {
		clear(r.avoid)
	}
	for _, m := range readMounts(dir) {
		if len(r.avoid) < maxVerdicts {
			r.avoid[m.dev] = verdict{m.avoid, now.Add(keepVerdict)}
		}
	}
	if v, ok := r.avoid[dev]; ok {
		return v.avoid
	}
	// The process sees no mount of the device. This is not cached, because another process can see a mount. A device with a
	// disk (major not 0) answers. Another number can belong to a network file system that was unmounted (umount -l) because it
	// does not answer. Such a device is avoided, unless this process or the host's first process has a mount of it.
	if dev.major != 0 || dev == memoryDevice() {
		return false
	}
	for _, mounts := range [][]mount{r.own.get("/proc/self"), r.initial.get(r.proc + "/1")} {
		for _, m := range mounts {
			if m.dev == dev {
				return m.avoid
			}
		}
	}
	return true
}

// memoryDevice returns the device of files from memfd_create. mountinfo does not list it.
var memoryDevice = sync.OnceValue(func() device {
	fd, err := unix.MemfdCreate("", unix.MFD_CLOEXEC)
	if err != nil {
		return device{}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return device{}
	}
	return device{unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))} //nolint:unconvert // types differ by architecture
})
