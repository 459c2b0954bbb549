package procmap

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mount is a line of mountinfo.
type mount struct {
	dev   device
	point string
	avoid bool // its answers come from a process or over a network
}

// mayNotAnswer are file systems whose answers come from a process or over a network.
var mayNotAnswer = []string{"fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "afs", "gfs2", "ocfs2", "lustre", "glusterfs", "beegfs", "autofs"}

// parseMounts reads mountinfo: "36 35 98:0 /root /point options - type source options".
func parseMounts(text []byte) []mount {
	var mounts []mount
	for line := range bytes.Lines(text) {
		before, after, ok := strings.Cut(string(bytes.TrimSuffix(line, []byte("\n"))), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		fstype, _, _ := strings.Cut(after, " ")
		base, _, _ := strings.Cut(fstype, ".") // fuse.sshfs
		major, minor, _ := strings.Cut(fields[2], ":")
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		mounts = append(mounts, mount{device{uint32(ma), uint32(mi)}, unescape(fields[4]), slices.Contains(mayNotAnswer, base)})
	}
	return mounts
}

// unescape undoes what mountinfo does to blanks and backslashes: \040.
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

// findMount returns the mount that a path is on, nil if there is none.
func findMount(mounts []mount, path string) *mount {
	var found *mount
	for i := range mounts { // of several at one place, the last one counts
		m := &mounts[i]
		below := m.point == "/" || path == m.point || strings.HasPrefix(path, m.point) && path[len(m.point)] == '/'
		if below && (found == nil || len(m.point) >= len(found.point)) {
			found = m
		}
	}
	return found
}

// readMounts reads the mounts that a process has.
func readMounts(dir int) []mount {
	text, err := readAt(dir, "mountinfo", maxMountinfo)
	if err != nil {
		return nil
	}
	return parseMounts(text)
}

// verdict is whether a device is one of a file system that may not answer.
type verdict struct {
	avoid bool
	until time.Time
}

const (
	keepVerdict = time.Minute
	maxVerdicts = 4096
)

// avoided tells whether a device is that of a file system that is not read, from the mounts of a
// process.
func (r *Resolver) avoided(dir int, dev device) bool {
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	now := time.Now()
	if v, ok := r.avoid[dev]; ok && now.Before(v.until) {
		return v.avoid
	}
	if len(r.avoid) >= maxVerdicts {
		clear(r.avoid)
	}
	r.avoid[dev] = verdict{false, now.Add(keepVerdict)} // one that is mounted nowhere that the process sees
	for _, m := range readMounts(dir) {
		if len(r.avoid) < maxVerdicts {
			r.avoid[m.dev] = verdict{m.avoid, now.Add(keepVerdict)}
		}
	}
	return r.avoid[dev].avoid
}

// hostMounts are the mounts of this process, as of a short while ago.
type hostMounts struct {
	mounts []mount
	until  time.Time
}

func (r *Resolver) hostMounts() []mount {
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	if h := &r.mounts; h.mounts == nil || !time.Now().Before(h.until) {
		self, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		h.mounts, h.until = readMounts(self), time.Now().Add(10*time.Second)
		unix.Close(self)
	}
	return r.mounts.mounts
}
