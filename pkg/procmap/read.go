package procmap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// Bounds of what is read of one process.
const (
	maxMaps      = 8 << 20 // bytes of /proc/PID/maps: more than 65,530 mappings, the kernel's default limit
	maxMountinfo = 4 << 20
	maxRanges    = 4096
	maxPath      = 4096
)

var (
	errOther   = errors.New("another process has this number now")
	errAvoided = errors.New("a file system that may not answer")
)

// fileID tells one state of a file from others.
type fileID struct {
	dev, inode  uint64
	size        int64
	sec, nanosc int64
}

// userHZ is the unit of times in /proc/PID/stat: USER_HZ is 100 on all architectures that Go and
// Inspektor Gadget run on.
const userHZ = 100

// read reads the mappings of a process. Only the goroutine of run calls it.
func (r *Resolver) read(req request) ([]mapped, error) {
	dir, err := unix.Open(r.proc+"/"+strconv.FormatUint(uint64(req.process.PID), 10), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a process: %w", err)
	}
	defer unix.Close(dir)
	if err := r.check(dir, req); err != nil {
		return nil, err
	}
	text, err := readAt(dir, "maps", maxMaps)
	if err != nil {
		return nil, err
	}
	areas := parseMaps(text)
	avoid := avoided(dir)
	// The kernel reuses neither folder nor maps, but execve replaces the maps.
	if err := r.check(dir, req); err != nil {
		return nil, err
	}
	var problem error
	known := map[string]*file{}
	ranges := make([]mapped, 0, len(areas))
	for _, a := range areas {
		select {
		case <-r.stop:
			return nil, errors.New("stopped")
		default:
		}
		key := a.dev + " " + strconv.FormatUint(a.inode, 10) + " " + a.path
		f, ok := known[key]
		if !ok {
			if info, err := r.identify(dir, a, avoid); err == nil {
				f = &file{path: a.path, info: info}
			} else {
				problem = err
			}
			known[key] = f
		}
		if f != nil {
			ranges = append(ranges, mapped{a.start, a.end, a.offset, f})
		}
	}
	if len(ranges) == 0 && problem != nil {
		return nil, problem
	}
	return ranges, nil
}

// check makes sure that the folder is that of the process that the kernel saw.
func (r *Resolver) check(dir int, req request) error {
	// As the kernel knows it, without asking a file system that may not answer.
	var exe unix.Statx_t
	if err := unix.Statx(dir, "exe", unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &exe); err != nil {
		return fmt.Errorf("looking at the executable: %w", err)
	}
	if exe.Ino != req.process.ExeInode {
		return errOther
	}
	if req.seen == 0 {
		return nil
	}
	stat, err := readAt(dir, "stat", 4096)
	if err != nil {
		return err
	}
	start, ok := startTime(stat)
	if !ok || start*(1e9/userHZ) > req.seen {
		return errOther
	}
	return nil
}

// startTime returns the field starttime of /proc/PID/stat. The name before it is in parentheses and
// can hold anything.
func startTime(stat []byte) (uint64, bool) {
	i := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[i+1:]))
	const starttime = 22 - 3 // counted from the state, which is field 3
	if i < 0 || len(fields) <= starttime {
		return 0, false
	}
	n, err := strconv.ParseUint(fields[starttime], 10, 64)
	return n, err == nil
}

func readAt(dir int, name string, limit int64) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s of a process: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("reading %s of a process: %w", name, err)
	}
	return b, nil
}

// area is a line of /proc/PID/maps: what is mapped from a file and may be executed.
type area struct {
	start, end, offset uint64
	dev                string // major:minor, in hexadecimal
	inode              uint64
	path               string
}

// parseMaps reads the areas, by address as the kernel lists them. A line that makes no sense is left
// out.
func parseMaps(text []byte) []area {
	var areas []area
	for line := range bytes.Lines(text) {
		if len(areas) == maxRanges {
			break
		}
		if a, ok := parseArea(string(bytes.TrimSuffix(line, []byte("\n")))); ok {
			areas = append(areas, a)
		}
	}
	return areas
}

// parseArea reads "55d0c0a4e000-55d0c0b2f000 r-xp 0002f000 fd:01 1234   /usr/bin/bash".
func parseArea(line string) (area, bool) {
	var a area
	var fields [5]string
	for i := range fields {
		var ok bool
		line = strings.TrimLeft(line, " ")
		if fields[i], line, ok = strings.Cut(line, " "); !ok {
			return a, false
		}
	}
	from, to, _ := strings.Cut(fields[0], "-")
	if len(fields[1]) != 4 || fields[1][2] != 'x' {
		return a, false
	}
	a.dev = fields[3]
	a.path = strings.TrimSuffix(strings.TrimLeft(line, " "), " (deleted)")
	for _, n := range []struct {
		dst  *uint64
		text string
		base int
	}{{&a.start, from, 16}, {&a.end, to, 16}, {&a.offset, fields[2], 16}, {&a.inode, fields[4], 10}} {
		v, err := strconv.ParseUint(n.text, n.base, 64)
		if err != nil {
			return a, false
		}
		*n.dst = v
	}
	return a, a.inode != 0 && a.start < a.end && strings.HasPrefix(a.path, "/") && len(a.path) <= maxPath
}

// identify reads what identifies the file that is mapped in an area.
func (r *Resolver) identify(dir int, a area, avoid map[string]bool) (buildid.Info, error) {
	if avoid[a.dev] {
		return buildid.Info{}, errAvoided
	}
	// The link leads to the mapped file itself, whatever its path is now. With O_PATH nothing of it
	// is run: it may be a device.
	path, err := unix.Openat(dir, fmt.Sprintf("map_files/%x-%x", a.start, a.end), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return buildid.Info{}, fmt.Errorf("opening what is mapped: %w", err)
	}
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return buildid.Info{}, fmt.Errorf("looking at what is mapped: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != a.inode {
		return buildid.Info{}, errOther
	}
	id := fileID{uint64(st.Dev), st.Ino, st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)} //nolint:unconvert // types differ by architecture
	if info, ok := r.files[id]; ok {
		return info, nil
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buildid.Info{}, fmt.Errorf("opening what is mapped: %w", err)
	}
	f := os.NewFile(uintptr(fd), a.path)
	defer f.Close()
	info, err := buildid.Read(f, st.Size)
	if err != nil {
		return buildid.Info{}, err
	}
	if len(r.files) >= maxFiles {
		clear(r.files)
	}
	r.files[id] = info
	return info, nil
}

// mayNotAnswer are file systems whose answers come from a process or over a network.
var mayNotAnswer = []string{"fuse", "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "gfs2", "ocfs2", "lustre", "glusterfs", "beegfs"}

// avoided returns the devices, as maps name them, of file systems that are not read.
func avoided(dir int) map[string]bool {
	text, err := readAt(dir, "mountinfo", maxMountinfo)
	if err != nil {
		return nil
	}
	devices := map[string]bool{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for scanner.Scan() {
		before, after, ok := strings.Cut(scanner.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 3 {
			continue
		}
		fstype, _, _ := strings.Cut(after, " ")
		base, _, _ := strings.Cut(fstype, ".") // fuse.sshfs
		major, minor, _ := strings.Cut(fields[2], ":")
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		if err1 == nil && err2 == nil && slices.Contains(mayNotAnswer, base) {
			devices[fmt.Sprintf("%02x:%02x", ma, mi)] = true
		}
	}
	return devices
}
