package procmap

import (
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// A file is opened according to what its file system is.
//
// That is certain from the file's mount. The file is opened with O_PATH, which involves no file system without a network. Its
// mount has an ID, and mountinfo has a line with that ID. While the file is open nothing else can have it. A device number says
// less: the next file system gets the number of an unmounted one without a disk.
//
// An overlay answers as its layers do, and these are paths in the mount namespace that it was mounted in. If the host's
// first process has it as well, its mounts tell what the layers are on. Else nobody knows for certain: such a file
// system, or one of an unknown type, is doubtful. It is opened all the same, because ordinary containers can look like
// that. What does not answer then is left behind (package patience) and its device avoided; after some of those
// nothing doubtful is opened for a while.
type trust uint8

const (
	avoid    trust = iota // it is not opened
	doubtful              // it may not answer
	trusted
)

var (
	// mayNotAnswer are file systems with answers from a process or over a network.
	mayNotAnswer = []string{
		"fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "afs", "gfs2", "ocfs2", "lustre", "glusterfs",
		"beegfs", "autofs", "coda", "orangefs", "vboxsf", "gpfs",
	}
	// answer are those that the kernel serves from memory or a disk.
	answer = []string{
		"ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "jfs", "reiserfs", "vfat", "exfat", "ntfs3", "iso9660", "udf",
		"squashfs", "erofs", "tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs",
	}
	layered = []string{"overlay", "overlayfs"}
)

// maxStacked is how many nested overlays are inspected. The kernel allows two.
const maxStacked = 3

// trust returns how far the file system of m is trusted. mounts are the mounts in m's namespace.
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

// layers returns the folders of an overlay: lowerdir=/a:/b (a colon in a name is \:), lowerdir+=/a and so on. mountinfo writes a
// comma in a name, and other characters, as unescape reads them.
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
		if b.Len() > 0 { // :: comes before layers with data only
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

// judgement is the trust in a mount, and how long it is valid. The mount cannot be another one meanwhile; but the
// host's first process may see it later.
type judgement struct {
	trust trust
	dev   device
	until time.Time
}

// judge says how far the file system of a file that is open with O_PATH is trusted, and notes it in on, with its device. dir is
// the /proc folder of the process that has mapped the file. dev is the mapping's device, or the zero value.
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
	// Of its own: the two kinds of ID exclude each other.
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return avoid, dev
	}
	id, real := st.Mnt_id, device{st.Dev_major, st.Dev_minor}
	if real.major != 0 && dev.major != 0 {
		return trusted, real // a disk; what is not one was left out by avoided and openBelow
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
	// Nobody sees the mount: it was unmounted (umount -l), or is outside of the process's root.
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

// kernelMounts are the mounts of a process that does not end, read again when the kernel says that they have changed.
type kernelMounts struct {
	f      *os.File
	mounts []mount
}

// get returns the mounts of the process with the /proc folder at path, nil if they cannot be read.
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
