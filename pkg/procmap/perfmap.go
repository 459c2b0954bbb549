package procmap

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// A JIT compiler can list its code in /tmp/perf-PID.map. The path is below the process's own root. The PID is from the
// process's own PID namespace.

// perfMap returns the Place of addr, an address in l's generated code. State is Pending until l's perf map is identified. File
// is then the perf map. Without a perf map, only State is set. The caller holds r.mu.
func (r *Resolver) perfMap(l *life, addr uint64) Place {
	place := Place{State: Generated}
	if l.perf == nil {
		latest := max(l.start, l.readAt)
		if latest == 0 {
			latest = procfs.SinceBoot() // the life has not ended
		}
		l.perf = &file{kind: perfMap, holders: [3]holder{{pid: l.pid, seen: latest}}}
	}
	f := l.perf
	switch {
	case f.known != nil:
		place.File, place.Address = f.known, addr
		if !l.ended && f.checked+recheck < procfs.SinceBoot() {
			r.check(f) // the map can be another file now
		}
	case l.ended: // the PID may belong to another process
	case r.check(f):
		place.State = Pending
	}
	return place
}

// identifyPerfMap finds the perf map of a process.
func (r *Resolver) identifyPerfMap(h holder, known *File, on *opening) (*File, error) {
	f, st, err := r.openPerfMap(h, on)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id := symtab.FileID{Dev: uint64(st.Dev), Inode: st.Ino, Process: h.seen ^ uint64(h.pid)<<40 | 1} //nolint:unconvert // types differ by architecture
	if known != nil && known.ID == id {
		return known, nil
	}
	return &File{Path: f.Name(), ID: id}, nil
}

// openPerfMap opens the perf map of a holder's process. It only accepts a regular file that belongs to the process's effective
// user or to root. If a process with this pid began after h.seen, it is another process, so openPerfMap refuses it.
func (r *Resolver) openPerfMap(h holder, on *opening) (*os.File, *unix.Stat_t, error) {
	dir, err := procfs.Open(r.proc, h.pid)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	if start, err := dir.Began(r.proc, h.pid); err != nil || start > h.seen {
		return nil, nil, errOther
	}
	status, err := dir.Read("status", 16<<10)
	if err != nil {
		return nil, nil, err
	}
	uid, number, ok := parseStatus(status)
	if !ok {
		return nil, nil, errOther
	}
	return r.openInRoot(dir, "/tmp/perf-"+number+".map", func(st *unix.Stat_t) bool { return st.Uid == uid || st.Uid == 0 }, on)
}

// parseStatus returns the effective user from /proc/PID/status, and the process's PID in its own PID namespace.
func parseStatus(text []byte) (uid uint32, number string, ok bool) {
	found := 0
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) > 2 && string(fields[0]) == "Uid:":
			n, err := strconv.ParseUint(string(fields[2]), 10, 32)
			if err != nil {
				return 0, "", false
			}
			uid = uint32(n)
			found |= 1
		case len(fields) > 1 && string(fields[0]) == "NSpid:":
			last := string(fields[len(fields)-1])
			if _, err := strconv.ParseUint(last, 10, 32); err != nil {
				return 0, "", false
			}
			number = last
			found |= 2
		}
	}
	return uid, number, found == 3
}
