package procmap

import (
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// A file is only opened if its file system is trusted enough.
//
// The file's mount identifies the file system. The file is opened with O_PATH, which calls no file system without a network.
// Its mount has an ID, and mountinfo has a line with that ID. While the file is open, no other mount can have the ID. A device
// number is less reliable: after an unmount, the next file system without a disk gets the same number.
//
// An overlay answers if its layers answer. The layers are paths in the mount namespace in which the overlay was mounted. If the
// host's first process also has this mount, its mounts show the layers' file systems. Otherwise these are uncertain. Such an
// overlay, or a file system of an unknown type, is doubtful. Files on it are opened nevertheless, because ordinary containers
// can have such file systems. A call that hangs is abandoned (package patience), and its device is avoided. After several such
// calls, no doubtful file system is used for some time.
type trust uint8

const (
	avoid    trust = iota // files of this mount must not be opened
	doubtful              // the file system might not respond
	trusted
)

var (
	// mayNotAnswer lists file systems that a process or a network serves.
	mayNotAnswer = []string{
		"fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "afs", "gfs2", "ocfs2", "lustre", "glusterfs",
		"beegfs", "autofs", "coda", "orangefs", "vboxsf", "gpfs",
	}
	// answer lists file systems that the kernel serves from memory or a disk.
	answer = []string{
		"ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "jfs", "reiserfs", "vfat", "exfat", "ntfs3", "iso9660", "udf",
		"squashfs", "erofs", "tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs",
	}
	layered = []string{"overlay", "overlayfs"}
)

// maxStacked is the number of nested overlays that are inspected. The kernel allows two.
const maxStacked = 3

// trust returns the trust in m's file system. mounts are the mounts in m's namespace.
func (m *mount) trust(mounts []mount, depth int) trust {
	switch {
	case m.avoid:
		return avoid
	case slices.Contains(answer, m.fstype):
		return trusted
	case !slices.Contains(layered, m.fstype) || depth >= maxStacked:
		return doubtful
	}
	layers := m.layers()
	least := trusted
	if len(layers) == 0 {
		least = doubtful
	}
	for _, path := range layers {
		t := doubtful
		if strings.HasPrefix(path, "/") {
			if on := findMount(mounts, path); on != nil && on.dev != m.dev {
				t = on.trust(mounts, depth+1)
			}
		}
		least = min(least, t)
	}
	return least
}

// layers returns the directories of an overlay from lowerdir=/a:/b (a colon in a name is \:), lowerdir+=/a and so on. unescape
// decodes commas and other characters in names.
func (m *mount) layers() []string {
	var layers []string
	for option := range strings.SplitSeq(m.options, ",") {
		name, value, _ := strings.Cut(option, "=")
		value = unescape(value)
		switch name {
		case "lowerdir":
			layers = append(layers, splitLayers(value)...)
		case "lowerdir+", "datadir+", "upperdir":
			layers = append(layers, value)
		}
	}
	return layers
}

func splitLayers(s string) []string {
	var layers []string
	var b strings.Builder
	add := func() {
		if b.Len() > 0 { // data-only layers follow ::
			layers = append(layers, b.String())
		}
		b.Reset()
	}
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == ':':
			add()
		default:
			b.WriteByte(s[i])
		}
	}
	add()
	return layers
}

// judgement holds the trust in a mount, and how long it is valid. The mount cannot change in that time, but it can become
// visible to the host's first process.
type judgement struct {
	trust trust
	dev   device
	until time.Time
}

// judge returns the trust in the file system of a file that is open with O_PATH. It stores the trust and the device in on. dir
// is the /proc directory of the process that has mapped the file. dev is the mapping's device, or the zero value.
func (r *Resolver) judge(dir procfs.Dir, fd int, dev device, on *opening) trust {
	t, dev := r.judged(dir, fd, dev)
	on.set(dev, t)
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	now := time.Now()
	if r.isStuck(dev, now) || t == doubtful && len(r.stuck) >= maxDoubtful {
		return avoid
	}
	return t
}

func (r *Resolver) judged(dir procfs.Dir, fd int, dev device) (trust, device) {
	var st unix.Statx_t
	// This needs a call of its own, because the two kinds of ID exclude each other.
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return avoid, dev
	}
	id, real := st.Mnt_id, device{st.Dev_major, st.Dev_minor}
	if real.major != 0 && dev.major != 0 {
		return trusted, real // a disk; avoided and openBelow have refused all others
	}
	var unique unix.Statx_t
	only := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &unique) == nil &&
		unique.Mask&unix.STATX_MNT_ID_UNIQUE != 0 // Linux 6.8
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	now := time.Now()
	if j, ok := r.judgements[unique.Mnt_id]; ok && only && now.Before(j.until) {
		return j.trust, j.dev
	}
	process, own, initial := readMounts(dir), r.own.get("/proc/self"), r.initial.get(r.proc+"/1")
	if initial == nil {
		initial = own
	}
	for _, mounts := range [][]mount{process, initial, own} {
		i := slices.IndexFunc(mounts, func(m mount) bool { return m.id == id })
		if i < 0 {
			continue
		}
		m := &mounts[i]
		t := m.trust(mounts, 0)
		if slices.Contains(layered, m.fstype) && t != avoid {
			t = doubtful
			if i := slices.IndexFunc(initial, func(o mount) bool { return o.dev == m.dev }); i >= 0 {
				t = initial[i].trust(initial, 0)
			}
		}
		if only {
			if len(r.judgements) >= maxVerdicts {
				clear(r.judgements)
			}
			r.judgements[unique.Mnt_id] = judgement{t, m.dev, now.Add(keepVerdict)}
		}
		return t, m.dev
	}
	// No process sees the mount. It was unmounted (umount -l), or is outside the process's root.
	if real == memoryDevice() {
		return trusted, real
	}
	if dev == (device{}) {
		dev = real
	}
	for _, mounts := range [][]mount{process, initial, own} {
		if i := slices.IndexFunc(mounts, func(m mount) bool { return m.dev == dev || m.dev == real }); i >= 0 {
			return min(mounts[i].trust(mounts, 0), doubtful), dev
		}
	}
	if real.major != 0 {
		return doubtful, real
	}
	return avoid, dev
}

// kernelMounts holds the mounts of a process that does not exit. They are read again when the kernel reports a change.
type kernelMounts struct {
	f      *os.File
	mounts []mount
}

// get returns the mounts of the process whose /proc directory is at path, or nil if they cannot be read.
func (k *kernelMounts) get(path string) []mount {
	if k.f == nil {
		fd, err := unix.Open(path+"/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		k.f = os.NewFile(uintptr(fd), path)
	} else if k.mounts != nil {
		ready := []unix.PollFd{{Fd: int32(k.f.Fd()), Events: unix.POLLPRI}}
		if n, err := unix.Poll(ready, 0); err == nil && n == 0 {
			return k.mounts
		}
	}
	text, err := procfs.ReadFrom(k.f, maxMountinfo)
	if err != nil {
		k.close()
		return nil
	}
	k.mounts = parseMounts(text)
	return k.mounts
}

func (k *kernelMounts) close() {
	if k.f != nil {
		k.f.Close()
		k.f, k.mounts = nil, nil
	}
}

// hostMounts returns the mounts of this process.
func (r *Resolver) hostMounts() []mount {
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	return r.own.get("/proc/self")
}
